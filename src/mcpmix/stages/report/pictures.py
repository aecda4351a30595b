"""Pictures of the page: training samples with their counterparts, and test images."""

from collections import defaultdict
from pathlib import Path

from mcpmix.core.tracking import JsonLines
from mcpmix.data.arrays import load_arrays
from mcpmix.data.sample import read_image, read_mask
from mcpmix.reporting.arms import arms_of, method_of, reference_of
from mcpmix.reporting.html import CaseView, Strip
from mcpmix.reporting.scores import differences, pick_cases, spread_over_groups
from mcpmix.reporting.sections import case_view, strip
from mcpmix.stages.report.source import Source

_STRIPS = 4  # training samples shown
_COUNTERPARTS = 8  # counterparts shown of each, at most
_CASES = 2  # test images shown of each kind: best, median, worst


def strips_of(source: Source) -> tuple[Strip, ...]:
    """Some training samples with their counterparts, one of each group in turn."""
    if source.pairs is None:
        return ()
    train = {record.id: record for record in source.index.part("train")}
    chosen = spread_over_groups({name: record.group for name, record in train.items()}, _STRIPS)
    records = [train[name] for name in chosen]
    arrays = load_arrays(records, source.config.data.size)
    files: dict[str, list[Path]] = defaultdict(list)
    for row in JsonLines(source.pairs / "ledger.jsonl").rows():
        if row.get("admitted", True):
            files[str(row["parent"])].append(source.pairs / str(row["file"]))
    strips = []
    for place, record in enumerate(records):
        counterparts = [read_image(path) for path in files[record.id][:_COUNTERPARTS]]
        if counterparts:
            title = f"{record.id} ({source.group_word.removesuffix('s')} {record.group})"
            largest = source.config.rla.s_max
            strips.append(strip(title, arrays.images[place], arrays.masks[place], counterparts, largest))
    return tuple(strips)


def strips_text(source: Source) -> str:
    """What the strips show, or why there are none."""
    if source.pairs is None:
        return (
            "There is no bank of pairs: counterparts were made while training ran and not kept, or none were "
            "needed."
        )
    return (
        "Left: the real image (s = 0) turns into its first synthetic counterpart, up to the largest share "
        f"that training uses (s = {source.config.rla.s_max:g}). Right: the counterparts alone. The line "
        "is the contour of the mask, which is the label of all of them."
    )


def cases_of(source: Source) -> tuple[tuple[CaseView, ...], str]:
    """Test images chosen by the difference between method and reference, with one seed."""
    seed = next(iter(source.evaluations))[1]
    scores = {arm: values for (arm, number), values in source.scores().items() if number == seed}
    reference, method = reference_of(list(scores)), method_of(list(scores))
    arms = {arm.name: arm for arm in arms_of(source.arms)}
    if reference is None or method is None:
        criterion, values = "DSC", next(iter(scores.values()))
    else:
        criterion = f"DSC of {arms[method].label} minus {arms[reference].label}"
        values = differences(scores[method], scores[reference])
    text = (
        f"With seed {seed}, chosen by the {criterion}: the highest (best), those in the middle (median) and "
        "the lowest (worst). The best and the worst are extremes, not what to expect."
    )
    records = {record.id: record for record in source.index.part("test")}
    views = []
    for case in pick_cases(values, _CASES):
        record = records[case.id]
        image, truth = read_image(record.image), read_mask(record.mask)
        predictions = [
            (
                arms[arm],
                read_mask(source.evaluations[arm, seed] / f"predictions/{case.id}.png"),
                found[case.id],
            )
            for arm, found in scores.items()
        ]
        views.append(case_view(case, image, truth, predictions))
    return tuple(views), text
