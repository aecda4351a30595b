"""Pictures of the page: training samples with their counterparts, and test images."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from mcpmix.config_file import to_yaml
from mcpmix.core.jsonl import JsonLines
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.cache import load_arrays
from mcpmix.data.sample import read_image, read_mask
from mcpmix.data.splits import PARTS
from mcpmix.networks.weight_files import licence_of
from mcpmix.report import sentences as statements
from mcpmix.report.arms import arms_of, method_of, reference_of
from mcpmix.report.html import CaseView, Fact, Page, Provenance, Strip, TableView
from mcpmix.report.scores import Groups, differences, group_gains, pick_cases, seed_means, spread_over_groups
from mcpmix.report.sections import (
    bank_text,
    bank_tiles,
    case_view,
    gate_section,
    group_section,
    strip,
    training_section,
)
from mcpmix.report.source import HEADLINE, Source
from mcpmix.report.tables import Run, Table, boundary_columns, region_columns, to_markdown


def make_page(
    source: Source,
    table: Table,
    dataset: Artifact,
    strips: tuple[Strip, ...],
    cases: tuple[CaseView, ...],
    cases_text: str,
) -> Page:
    """All that the page shows.

    Args:
        source: what it is made from.
        table: all metrics.
        dataset: the data set's artefact.
        strips: training samples with counterparts.
        cases: test images.
        cases_text: how they were chosen.
    """
    arms, logs, groups = arms_of(source.arms), source.logs(), source.groups()
    gates = [gate_section(arm, logs, source.tail_from) for arm in arms]
    return Page(
        name=source.config.name,
        lead=_lead(source),
        verdicts=_verdicts(source, table, groups),
        caution=statements.caution(len(table.seeds)),
        facts=_facts(source, table),
        arms=arms,
        tables=_table_views(source, table),
        groups=group_section(arms, groups, table.reference, source.group_word, unseen=not source.leaks),
        strips=strips,
        strips_text=strips_text(source),
        gates=tuple(section for section in gates if section is not None),
        training=training_section(arms, logs, source.tail_from),
        cases=cases,
        cases_text=cases_text,
        warnings=_warnings(source),
        provenance=_provenance(source, dataset),
        bank=bank_tiles(source.pairs.folder) if source.pairs else (),
        bank_text=bank_text(source.pairs.manifest["counts"]) if source.pairs else "",
    )


def _leak_text(reason: str) -> str:
    """What a table has to say if its split leaks."""
    return f"this split leaks ({reason}), so the figures are too good"


def _lead(source: Source) -> str:
    config, labels = source.config, [arm.label for arm in arms_of(source.arms)]
    kind = (
        "Images drawn by a procedural phantom of endoscopy; no real patient is among them."
        if config.data.source == "phantom"
        else f"Images of the folder {config.data.images or config.data.root} ({config.data.source})."
    )
    grouping = ""
    if config.data.source == "folder" and config.data.groups is None:
        grouping = (
            " No groups were given, so every image is its own: if several show one patient, test figures are "
            "too good."
        )
    tested = f"{source.group_word} none of whose images was used for training or for choosing the checkpoint"
    if source.leaks:
        tested = f"images of {source.group_word} that were trained on as well: {_leak_text(source.leaks)}"
    return (
        f"Compared: {'; '.join(labels)}. Each trains the same network ({config.segmenter.name} "
        f"{config.segmenter.variant}, {config.data.size} px) and is tested on {tested}. {kind}{grouping}"
    )


def _verdicts(source: Source, table: Table, groups: Groups) -> tuple[str, ...]:
    """One sentence for each arm but the reference, the method's first."""
    reference, method = table.reference, method_of(source.arms)
    if reference is None:
        return ()
    column = next(column for column in table.columns if column.key == HEADLINE)
    others = sorted((arm for arm in source.arms if arm != reference), key=lambda arm: arm != method)
    return tuple(
        statements.comparison(
            table, column, arm, seed_means(group_gains(groups, arm, reference)), source.group_word
        )
        for arm in others
    )


def _facts(source: Source, table: Table) -> tuple[Fact, ...]:
    parts = []
    for part in PARTS:
        records = source.index.part(part)
        groups = len({record.group for record in records})
        word = source.group_word if groups != 1 else source.group_word.removesuffix("s")
        parts.append(Fact(part, f"{len(records)} images", f"of {groups} {word}"))
    seeds = ", ".join(map(str, table.seeds))
    return (
        *parts,
        Fact("seeds", str(len(table.seeds)), seeds),
        Fact("optimiser steps", *_steps_fact(source)),
    )


def _steps_fact(source: Source) -> tuple[str, str]:
    counts = sorted({count for steps in _steps(source).values() for count in steps})
    if len(counts) == 1:
        return str(counts[0]), "the same for every arm and seed"
    return f"{counts[0]} to {counts[-1]}", "not the same for all"


def _steps(source: Source) -> dict[str, list[int]]:
    steps: dict[str, list[int]] = defaultdict(list)
    for (arm, _), segmenter in source.segmenters.items():
        steps[arm].append(int(segmenter.manifest["counts"]["steps"]))
    return dict(steps)


def _table_views(source: Source, table: Table) -> tuple[TableView, ...]:
    region = table.select(region_columns())
    boundary = table.select(boundary_columns(source.config.evaluation.tolerances))
    word = source.group_word
    leaks = (_leak_text(source.leaks),) if source.leaks else ()
    lengths = (
        "BF1@t: F1 of boundary pixels within t pixels of the other boundary. BIoU: IoU of the bands of "
        f"{source.config.evaluation.band} pixels around both boundaries. A missed lesion counts as the image "
        "diagonal in HD95 and ASSD."
    )
    return (
        TableView(
            "Results on the test images" if source.leaks else f"Results on unseen {word}",
            region,
            (
                *leaks,
                statements.basis(table, source.test_groups, word),
                statements.undefined_note(region),
                statements.step_note(_steps(source), source.config.train.batch_size),
            ),
        ),
        TableView("Boundaries", boundary, (*leaks, lengths, statements.undefined_note(boundary))),
    )


def _warnings(source: Source) -> tuple[tuple[str, str], ...]:
    labels = {arm.name: arm.label for arm in arms_of(source.arms)}
    pairs = source.pairs.manifest["counts"].get("warnings", []) if source.pairs else []
    general = [("Split", _leak_text(source.leaks))] if source.leaks else []
    general += [("Pairs", str(text)) for text in pairs]
    return tuple(general) + tuple(
        (f"{labels.get(arm, arm)}, seed {seed}", str(text))
        for (arm, seed), segmenter in source.segmenters.items()
        for text in segmenter.manifest["counts"].get("warnings", [])
    )


def to_text(source: Source, table: Table) -> str:
    """The tables as Markdown, with what a reader must know about them."""
    region, boundary = (to_markdown(view.table) for view in _table_views(source, table))
    notes = [
        f"**{_leak_text(source.leaks)}**" if source.leaks else "",
        statements.basis(table, source.test_groups, source.group_word),
        statements.undefined_note(table),
        statements.caution(len(table.seeds)),
    ]
    return "\n".join(
        [f"# {source.config.name}\n", region, boundary, *(f"{note}\n" for note in notes if note)]
    )


def _provenance(source: Source, dataset: Artifact) -> Provenance:
    config = source.config
    artifacts = [dataset, *([source.pairs] if source.pairs else [])]
    digests = {"dataset": dataset.digest} | ({"pairs": source.pairs.digest} if source.pairs else {})
    digests |= digests_of("segmenter", source.segmenters) | digests_of("evaluation", source.evaluations)
    found: dict[str, set[str]] = defaultdict(set)
    for artifact in [*artifacts, *source.segmenters.values(), *source.evaluations.values()]:
        for name, version in artifact.manifest["versions"].items():
            found[name].add(version)
    weights = {
        "depth network": config.depth.model,
        "generator": config.generator.base,
        "features of RLA": config.rla.features,
        "segmenter": config.segmenter.weights,
    }
    return Provenance(
        seeds={"run": str(config.seed), "trainings": ", ".join(map(str, config.train.seeds))},
        versions={name: " and ".join(sorted(versions)) for name, versions in found.items()},
        weights=tuple(
            (what, name or "none", licence_of(name) if name else "trained from scratch")
            for what, name in weights.items()
        ),
        digests=digests,
        config=to_yaml(config),
    )


def digests_of(stage: str, artifacts: Mapping[Run, Artifact]) -> dict[str, str]:
    """Digests of artefacts by stage, arm and seed."""
    return {f"{stage}/{arm}/seed-{seed}": item.digest for (arm, seed), item in artifacts.items()}


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
