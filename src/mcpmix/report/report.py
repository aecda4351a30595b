"""The last stage: tables and a page from all that the run has measured.

The page is one file with everything in it, that needs neither network nor scripts.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from mcpmix.config import Config
from mcpmix.config_file import to_yaml, without_places
from mcpmix.core.files import write_json, write_text
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, digest_of, reuse, workspace
from mcpmix.core.training import JsonLines
from mcpmix.data.index import DatasetIndex, Record, load_arrays, whole_digest
from mcpmix.data.sample import read_image, read_mask
from mcpmix.data.splits import ALL_PARTS, KNOWN
from mcpmix.generator.ledger import Review
from mcpmix.networks.weight_files import licence_of
from mcpmix.report import render_page, sentences, tables
from mcpmix.report.arms import Arm, arms_of, label_of, method_of, reference_of
from mcpmix.report.pictures import (
    TRUTH_COLOUR,
    Tile,
    bank_tiles,
    case_tiles,
    pick_cases,
    spread_over_groups,
    strip,
)
from mcpmix.report.tables import HEADLINE, Column, Groups, Row, Run, Table
from mcpmix.segmenter.evaluate import TESTED

GUESSED_NOTE = (
    "The groups were guessed from pictures, not recorded: if one patient or video is in two of them, these "
    "figures are too good."
)
_STRIPS = 4  # training samples shown
_COUNTERPARTS = 8  # counterparts shown of each, at most
_CASES = 2  # test images shown of each kind: best, median, worst


def key(
    config: Config,
    dataset: Artifact,
    pairs: Artifact | None,
    evaluations: Mapping[Run, Artifact],
    review: Review | None = None,
) -> StageKey:
    """What the page depends on: it prints the configuration, and evaluations stand for segmenters."""
    inputs = {f"evaluation/{arm}/seed-{seed}": item.digest for (arm, seed), item in evaluations.items()}
    inputs |= {"dataset": whole_digest(dataset)} | ({"pairs": pairs.digest} if pairs else {})
    inputs |= {"review": digest_of(asdict(review))} if review else {}
    return StageKey("report", without_places(config).model_dump(mode="json"), inputs, config.seed)


def run(
    config: Config,
    dataset: Artifact,
    pairs: Artifact | None,
    segmenters: Mapping[Run, Artifact],
    evaluations: Mapping[Run, Artifact],
    out: Path,
    progress: Progress = SILENT,
    review: Review | None = None,
) -> Artifact:
    """Write report.html, table.json and table.md; segmenters and evaluations have the same arms and seeds.

    Raises:
        DataError: an evaluation or a log is damaged.
    """
    wanted = key(config, dataset, pairs, evaluations, review)
    if (finished := reuse(out, wanted, progress)) is not None:
        return finished
    results = Results(without_places(config), dataset, pairs, segmenters, evaluations, review=review)
    with workspace(out, wanted) as space:
        with progress.track("report", 2) as advance:
            table = results.table
            marks: dict[str, object] = {"leaks": results.leaks} if results.leaks else {}
            marks |= {"groups_guessed": True} if results.guessed else {}
            marks |= {"alarms": results.alarms} if results.alarms else {}
            known: dict[str, object] = {part.part: part.table for part in results.parts[1:]}
            if results.config.data.classes:
                known["classes"] = {part.part: part.class_tables for part in results.parts}
            write_json(space.folder / "table.json", {"run": config.name, **marks, **table, **known})
            write_text(space.folder / "table.md", to_markdown(results))
            advance(1, "tables")
            write_text(space.folder / "report.html", to_html(results))
            advance(1, "page")
        return space.finish(
            arms=len(table["rows"]), seeds=len(table["seeds"]), images=table["images"], **marks
        )


@dataclass(frozen=True)
class Results:
    """All that a run has made, and what is read from it, once; figures are those of one of its test parts."""

    config: Config
    dataset: Artifact
    pairs: Artifact | None
    segmenters: Mapping[Run, Artifact]
    evaluations: Mapping[Run, Artifact]
    part: str = "test"
    review: Review | None = None  # of the pairs, as training knew it

    @cached_property
    def parts(self) -> list[Self]:
        """The results on each test part: this, and that on new images of known groups if there are any."""
        return [self, *([replace(self, part=KNOWN)] if self.index.part(KNOWN) else [])]

    @cached_property
    def index(self) -> DatasetIndex:
        """All images with their groups and parts."""
        return DatasetIndex.read(self.dataset)

    @cached_property
    def arms(self) -> tuple[Arm, ...]:
        """The arms in their order."""
        return arms_of(list(dict.fromkeys(arm for arm, _ in self.evaluations)))

    @property
    def word(self) -> str:
        """What a group is, in the plural."""
        return "patients" if self.config.data.source == "phantom" else "groups"

    @cached_property
    def leaks(self) -> str:
        """Why the figures are too good: the split, or what the networks have seen; empty if they are not."""
        counts = [item.manifest["counts"] for item in (self.dataset, *self.evaluations.values())]
        return "; ".join(dict.fromkeys(str(found["leaks"]) for found in counts if found.get("leaks")))

    @property
    def guessed(self) -> bool:
        """Whether the groups that the split keeps whole were guessed."""
        return bool(self.dataset.manifest["counts"].get("groups_guessed"))

    @cached_property
    def logs(self) -> dict[Run, list[dict[str, Any]]]:
        """The log of each training."""
        return {run: JsonLines(item / "log.jsonl").rows() for run, item in self.segmenters.items()}

    @cached_property
    def alarms(self) -> list[str]:
        """What a reader must know first: arms that have learnt nothing."""
        return sentences.alarms(self.table, self.logs)

    @property
    def leak_text(self) -> str:
        """What a table has to say if its split leaks."""
        return f"this split leaks ({self.leaks}), so the figures are too good" if self.leaks else ""

    @property
    def title(self) -> str:
        """What the figures are about."""
        if self.part == KNOWN:
            return f"Results on new images of known {self.word}"
        return "Results on the test images" if self.leaks else f"Results on unseen {self.word}"

    @property
    def columns(self) -> list[list[Column]]:
        """Columns of the tables that show all metrics."""
        return tables.all_columns(self.config.evaluation.tolerances)

    @cached_property
    def table(self) -> Table:
        """All metrics in one table."""
        name = f"summary{TESTED[self.part]}.json"
        read = {run: tables.read_summary(item / name) for run, item in self.evaluations.items()}
        return tables.build_table(read, [column for part in self.columns for column in part])

    @cached_property
    def class_tables(self) -> dict[str, Table]:
        """The region metrics of each class; none where masks are lesion or background."""
        name = f"classes{TESTED[self.part]}.json"
        return {
            label: tables.build_table(
                {run: tables.read_summary(item / name, label) for run, item in self.evaluations.items()},
                self.columns[0],
            )
            for label in self.config.data.classes
        }

    @property
    def records(self) -> list[Record]:
        """The images of the test part."""
        return self.index.part(self.part)

    @cached_property
    def scores(self) -> dict[Run, dict[str, float]]:
        """DSC of each test image."""
        name, ids = f"scores{TESTED[self.part]}.csv", [record.id for record in self.records]
        found = {}
        for run, item in self.evaluations.items():
            scores = tables.read_metrics(item / name, [HEADLINE], ids)
            found[run] = {image: value for image, (value,) in scores.items()}
        return found

    @cached_property
    def groups(self) -> Groups:
        """DSC by arm, test group and seed."""
        return tables.by_group(self.scores, {record.id: record.group for record in self.records})

    @property
    def basis(self) -> str:
        """What the figures of the tables are means of."""
        groups = len({record.group for record in self.records})
        known = f"new images of {groups} known {self.word}"
        images = known if self.part == KNOWN else f"test images of {groups} {self.word}"
        return sentences.basis(self.table, images)

    @property
    def class_notes(self) -> list[str]:
        """What figures are where there are several classes."""
        classes = self.config.data.classes
        return [sentences.CLASS_MEAN.format(", ".join(classes))] if classes else []

    @property
    def steps(self) -> dict[str, list[int]]:
        """Optimiser steps of the trainings of each arm."""
        steps: dict[str, list[int]] = defaultdict(list)
        for (arm, _), segmenter in self.segmenters.items():
            steps[arm].append(int(segmenter.manifest["counts"]["steps"]))
        return steps


def to_markdown(results: Results) -> str:
    """The tables as Markdown, with what a reader must know about them."""
    lines = [f"# {results.config.name}\n", *(f"**{text}**\n" for text in results.alarms)]
    if results.guessed:
        lines.append(f"**{GUESSED_NOTE}**\n")
    for part in results.parts:
        table = part.table
        lines += [f"## {part.title}\n", *(tables.to_markdown(table, columns) for columns in part.columns)]
        for name, each in part.class_tables.items():
            lines += [f"### {name}\n", tables.to_markdown(each, part.columns[0])]
        notes = [part.basis, *part.class_notes, sentences.undefined_note(table, table["columns"])]
        lines += [f"{note}\n" for note in ([f"**{part.leak_text}**"] if part.leaks else []) + notes]
    caution = sentences.caution(len(results.table["seeds"]))
    return "\n".join([*lines, *([f"{caution}\n"] if caution else [])])


def to_html(results: Results) -> str:
    """The page."""
    from mcpmix.report.charts import gate_section, group_section, training_section  # heavy: matplotlib

    config, arms, table = results.config, results.arms, results.table
    logs = results.logs
    tail_from = config.train.epochs if config.train.tail_epochs else None
    gates = [gate_section(arm, logs, tail_from) for arm in arms]
    return render_page(
        "report.html.j2",
        config=config,
        results=results,
        alarms=results.alarms,
        guessed=GUESSED_NOTE if results.guessed else "",
        verdicts=[] if sentences.nothing_learnt(table) else _verdicts(results),
        caution=sentences.caution(len(table["seeds"])),
        parts={part: results.index.part(part) for part in ALL_PARTS},
        steps=sorted({count for counts in results.steps.values() for count in counts}),
        arms=arms,
        truth=TRUTH_COLOUR,
        spread=tables.spread_text,
        tables=_tables(results),
        groups=group_section(arms, results.groups, table["reference"], results.word, not results.leaks),
        strips=_strips(results),
        bank=bank_tiles(results.pairs.folder) if results.pairs else [],
        gates=[section for section in gates if section is not None],
        training=training_section(arms, logs, tail_from),
        **_cases(results),
        **_provenance(results),
    )


def _verdicts(results: Results) -> list[str]:
    """One sentence for each test part and arm but the reference, the method's first."""
    reference, names = results.table["reference"], [arm.name for arm in results.arms]
    if reference is None:
        return []
    method = method_of(names)
    verdicts = []
    for arm in sorted((name for name in names if name != reference), key=lambda name: name != method):
        for part in results.parts:
            gains = tables.seed_means(tables.group_gains(part.groups, arm, reference))
            known = part.part == KNOWN
            start = f"On new images of known {part.word}: " if known else ""
            word = f"{'known' if known else 'test'} {part.word}"
            verdicts.append(start + sentences.comparison(part.table, arm, gains, word))
    return verdicts


def _tables(results: Results) -> list[tuple[str, list[Row], list[list[Column]], list[str]]]:
    """Title, rows, columns of one or two tables below each other, and notes."""
    config = results.config
    region, boundary, sides = results.columns
    leaks = [results.leak_text] if results.leaks else []
    lengths = (
        "BP@t, BR@t and BF1@t: precision, recall and F1 of boundary pixels, which are right within t pixels "
        f"of the other boundary. BIoU: IoU of the bands of {config.evaluation.band:g} pixels around both "
        "boundaries. A missed lesion counts as the image diagonal in HD95 and ASSD."
    )
    steps = sentences.step_note(results.steps, config.train.batch_size)
    shown = []
    for part in results.parts:
        notes = [*leaks, part.basis, *part.class_notes, sentences.undefined_note(part.table, region), steps]
        shown.append((part.title, part.table["rows"], [region], notes))
        for name, each in part.class_tables.items():
            title = f"{name}, known {part.word}" if part.part == KNOWN else f"Class {name}"
            shown.append((title, each["rows"], [region], [sentences.undefined_note(each, region)]))
    for part in results.parts:
        title = f"Boundaries, known {part.word}" if part.part == KNOWN else "Boundaries"
        notes = [*leaks, lengths, sentences.undefined_note(part.table, [*boundary, *sides])]
        shown.append((title, part.table["rows"], [boundary, sides], notes))
    return shown


# --- pictures -----------------------------------------------------------------------------------------------


def _strips(results: Results) -> list[tuple[str, list[Tile], list[Tile]]]:
    """Some training samples with their counterparts, one of each group in turn."""
    if results.pairs is None:
        return []
    train = {record.id: record for record in results.index.part("train")}
    chosen = spread_over_groups({name: record.group for name, record in train.items()}, _STRIPS)
    arrays = load_arrays([train[name] for name in chosen], results.config.data.size)
    files: dict[str, list[Path]] = defaultdict(list)
    rows = JsonLines(results.pairs / "ledger.jsonl").rows()
    for row in rows if results.review is None else results.review.apply(rows):
        if row["admitted"]:
            files[str(row["parent"])].append(results.pairs / str(row["file"]))
    strips = []
    for name, image, mask in zip(chosen, arrays.images, arrays.masks, strict=True):
        if counterparts := [read_image(path) for path in files[name][:_COUNTERPARTS]]:
            title = f"{name} ({results.word.removesuffix('s')} {train[name].group})"
            strips.append((title, *strip(title, image, mask, counterparts, results.config.rla.s_max)))
    return strips


def _cases(results: Results) -> dict[str, object]:
    """Test images chosen by the difference between method and reference, with one seed; and how."""
    seed = next(iter(results.evaluations))[1]
    scores = {arm: values for (arm, number), values in results.scores.items() if number == seed}
    reference, method = reference_of(list(scores)), method_of(list(scores))
    arms = {arm.name: arm for arm in results.arms}
    if reference is None or method is None:
        criterion, values = "DSC", next(iter(scores.values()))
    else:
        criterion = f"DSC of {arms[method].label} minus {arms[reference].label}"
        values = tables.differences(scores[method], scores[reference])
    records = {record.id: record for record in results.records}
    cases = []
    for kind, name in pick_cases(values, _CASES):
        labels = records[name].labels
        image, truth = read_image(records[name].image), read_mask(records[name].mask, labels)
        files = {arm: results.evaluations[arm, seed] / f"predictions/{name}.png" for arm in scores}
        predictions = [
            (arms[arm], read_mask(files[arm], labels), found[name]) for arm, found in scores.items()
        ]
        value = f"DSC {values[name]:.1f}" if reference is None else f"{values[name]:+.1f} points"
        title = f"{kind}: {name}, {value.replace('-', '−')}"
        cases.append((title, case_tiles(name, image, truth, predictions)))
    return {"cases": cases, "seed": seed, "criterion": criterion}


def _provenance(results: Results) -> dict[str, object]:
    """Warnings, and where the numbers come from: versions, weights with their licences, digests, settings."""
    config = results.config
    artifacts = {"dataset": results.dataset} | ({"pairs": results.pairs} if results.pairs else {})
    for stage, made in (("segmenter", results.segmenters), ("evaluation", results.evaluations)):
        artifacts |= {f"{stage}/{arm}/seed-{seed}": item for (arm, seed), item in made.items()}
    warnings = [("Training", text) for text in results.alarms]
    warnings += [("Groups", GUESSED_NOTE)] if results.guessed else []
    warnings += [("Split", results.leak_text)] if results.leaks else []
    if results.pairs is not None:
        warnings += [("Pairs", text) for text in results.pairs.manifest["counts"]["warnings"]]
    for (arm, seed), segmenter in results.segmenters.items():
        title = f"{label_of(arm)}, seed {seed}"
        warnings += [(title, text) for text in segmenter.manifest["counts"]["warnings"]]
    versions: dict[str, set[str]] = defaultdict(set)
    for artifact in artifacts.values():
        for name, version in artifact.manifest["versions"].items():
            versions[name].add(version)
    weights = {
        "depth network": config.depth.model,
        "generator": config.generator.base,
        "features of RLA": config.rla.features,
        "segmenter": config.segmenter.weights,
    }
    return {
        "warnings": warnings,
        "versions": {name: " and ".join(sorted(found)) for name, found in versions.items()},
        "weights": [
            (what, name or "none", licence_of(name) if name else "trained from scratch")
            for what, name in weights.items()
        ],
        "artifacts": artifacts,
        "settings": to_yaml(config),
    }
