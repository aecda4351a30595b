"""The last stage: tables and one self-contained page from all that the run has measured."""

from collections.abc import Mapping
from pathlib import Path

from mcpmix.config import Config
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace, write_json, write_text
from mcpmix.data.index import DatasetIndex
from mcpmix.report.html import render
from mcpmix.report.page import cases_of, digests_of, make_page, strips_of, to_text
from mcpmix.report.source import Source
from mcpmix.report.tables import Run, to_json


def key(
    config: Config,
    dataset: Artifact,
    pairs: Artifact | None,
    evaluations: Mapping[Run, Artifact],
) -> StageKey:
    """What the page depends on: it prints the whole configuration, and evaluations stand for segmenters."""
    inputs = {"dataset": dataset.digest, **digests_of("evaluation", evaluations)}
    if pairs is not None:
        inputs["pairs"] = pairs.digest
    return StageKey("report", config.model_dump(mode="json"), inputs, config.seed)


def run(
    config: Config,
    dataset: Artifact,
    pairs: Artifact | None,
    segmenters: Mapping[Run, Artifact],
    evaluations: Mapping[Run, Artifact],
    out: Path,
    progress: Progress = SILENT,
) -> Artifact:
    """Write report.html, table.json and table.md.

    Args:
        config: the whole configuration; it is printed.
        dataset: the data set's artefact.
        pairs: the bank of counterparts, if there is one.
        segmenters: trained segmenters by arm and seed.
        evaluations: their scores, by the same arms and seeds.
        out: folder of the result.
        progress: where to report.

    Raises:
        DataError: an evaluation or a log is damaged.
    """
    if (finished := reuse(out, key(config, dataset, pairs, evaluations), progress)) is not None:
        return finished
    leaks = _reasons(dataset, evaluations)
    index = DatasetIndex.read(dataset)
    source = Source(config, index, pairs, segmenters, evaluations, leaks)
    with workspace(out, key(config, dataset, pairs, evaluations)) as space:
        with progress.track("report", 4) as advance:
            table = source.table()
            marks = {"leaks": leaks} if leaks else {}
            write_json(space.folder / "table.json", {"run": config.name, **marks, **to_json(table)})
            write_text(space.folder / "table.md", to_text(source, table))
            advance(1, "table")
            strips = strips_of(source)
            advance(1, "strips")
            cases, cases_text = cases_of(source)
            advance(1, "predictions")
            page = make_page(source, table, dataset, strips, cases, cases_text)
            write_text(space.folder / "report.html", render(page))
            advance(1, "page")
        return space.finish(arms=len(table.rows), seeds=len(table.seeds), images=table.images, **marks)


def _reasons(dataset: Artifact, evaluations: Mapping[Run, Artifact]) -> str:
    """Why the figures are too good: the split, or what the networks have seen; empty if they are not."""
    counts = [artifact.manifest.get("counts", {}) for artifact in (dataset, *evaluations.values())]
    return "; ".join(dict.fromkeys(str(found["leaks"]) for found in counts if found.get("leaks")))
