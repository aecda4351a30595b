"""What must be said before any comparison: a network that has learnt nothing, or that marks everything."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcpmix.report.arms import label_of
from mcpmix.report.tables import HEADLINE, Run, Table

_NOTHING = 5.0  # percent; below this a recall, or a DSC, is that of a network that finds nothing
_EVERYTHING, _HALF_WRONG = 90.0, 50.0  # percent: recall above, and pixel accuracy below
_CHANGES = (
    "Look at the masks (`mcpmix check CONFIG --html audit.html`), then train longer (train.epochs) or with "
    "another train.learning_rate"
)


def alarms(table: Table, logs: Mapping[Run, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Sentences about arms whose figures mean nothing, each with what to change; empty if all have learnt.

    Args:
        logs: the rows of log.jsonl of each training.
    """
    return [*_by_scores(table), *_by_validation(logs)]


def nothing_learnt(table: Table) -> bool:
    """Whether no arm has learnt anything, so that arms cannot be compared."""
    return all((_mean(row, HEADLINE) or 0) < _NOTHING for row in table["rows"])


def _by_scores(table: Table) -> Iterator[str]:
    if nothing_learnt(table):
        arms = (
            f"none of the {len(table['rows'])} arms has" if len(table["rows"]) > 1 else "the network has not"
        )
        yield f"Nothing was learnt: {arms} reached a test DSC of {_NOTHING:g} %. {_CHANGES}."
    for row in table["rows"]:
        recall, right = _mean(row, "recall"), _mean(row, "pixel_accuracy")
        if recall is not None and recall < _NOTHING:
            yield (
                f"{row['label']} marks next to nothing: {recall:.1f} % of the lesion pixels of the test "
                f"images. {_CHANGES}."
            )
        elif recall is not None and right is not None and recall > _EVERYTHING and right < _HALF_WRONG:
            yield (
                f"{row['label']} marks nearly everything: {recall:.0f} % of the lesion pixels, and only "
                f"{right:.0f} % of all pixels are right. Are the masks inverted? {_CHANGES}."
            )


def _by_validation(logs: Mapping[Run, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    flat = []
    for (arm, seed), rows in logs.items():
        scores = [row["validation"][HEADLINE] for row in rows if "validation" in row]
        if len(scores) > 1 and max(scores[1:]) <= scores[0]:
            flat.append(f"{label_of(arm)}, seed {seed}")
    if flat:
        yield (
            "Validation never rose after its first value, so training added nothing there: "
            f"{'; '.join(flat)}. Lower train.learning_rate, and look at the validation images."
        )


def _mean(row: Mapping[str, Any], metric: str) -> float | None:
    value: float | None = row["metrics"][metric]["spread"]["mean"]
    return value
