"""The last stage: tables and one self-contained page from all that the run has measured."""

from collections.abc import Mapping
from pathlib import Path

from mcpmix.config import Config
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace, write_json, write_text
from mcpmix.report.page import Results, to_html, to_markdown
from mcpmix.report.tables import Run


def key(
    config: Config, dataset: Artifact, pairs: Artifact | None, evaluations: Mapping[Run, Artifact]
) -> StageKey:
    """What the page depends on: it prints the whole configuration, and evaluations stand for segmenters."""
    inputs = {f"evaluation/{arm}/seed-{seed}": item.digest for (arm, seed), item in evaluations.items()}
    inputs |= {"dataset": dataset.digest} | ({"pairs": pairs.digest} if pairs else {})
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
    """Write report.html, table.json and table.md; segmenters and evaluations have the same arms and seeds.

    Raises:
        DataError: an evaluation or a log is damaged.
    """
    wanted = key(config, dataset, pairs, evaluations)
    if (finished := reuse(out, wanted, progress)) is not None:
        return finished
    results = Results(config, dataset, pairs, segmenters, evaluations)
    with workspace(out, wanted) as space:
        with progress.track("report", 2) as advance:
            table = results.table
            marks = {"leaks": results.leaks} if results.leaks else {}
            write_json(space.folder / "table.json", {"run": config.name, **marks, **table})
            write_text(space.folder / "table.md", to_markdown(results))
            advance(1, "tables")
            write_text(space.folder / "report.html", to_html(results))
            advance(1, "page")
        return space.finish(
            arms=len(table["rows"]), seeds=len(table["seeds"]), images=table["images"], **marks
        )
