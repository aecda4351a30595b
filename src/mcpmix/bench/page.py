"""The results of a grid: every table in five formats, every figure, and one self-contained page."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from mcpmix.bench.banks import bank_sheet, measure_bank
from mcpmix.bench.distribution import require_umap
from mcpmix.bench.driver import Outcome
from mcpmix.bench.engines import Engine
from mcpmix.bench.figures import Drawn, Material, draw
from mcpmix.bench.gradients import Boundary, analyse, still
from mcpmix.bench.grid import FigureSpec, TableSpec
from mcpmix.bench.plan import Plan
from mcpmix.bench.sheets import Sheet, to_latex, to_markdown
from mcpmix.bench.tables import KINDS, build_table, to_rows, to_sheets
from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace, write_json, write_text
from mcpmix.data.index import training_digest
from mcpmix.data.tables import write_csv
from mcpmix.report import render_page
from mcpmix.report.tables import caution
from mcpmix.segmenter.arms import Inputs, arm_settings

PAGE = "index.html"


def require_packages(plan: Plan) -> None:
    """Refuse, before anything is trained, figures whose package is missing."""
    if any(spec.kind == "distribution" for spec in plan.grid.figures):
        require_umap()


def write_results(plan: Plan, found: Outcome, engine: Engine, progress: Progress = SILENT) -> Path:
    """Draw all tables and figures of what is finished; returns the page."""
    tables, figures = plan.out / "tables", plan.out / "figures"
    data = {name: next(iter(made.inputs.values())).dataset for name, made in found.groups.items()}
    data |= found.transfer
    sheets: dict[str, list[Sheet]] = {}
    work = [*plan.grid.tables, *plan.grid.figures]
    with progress.track("tables and figures", len(work)) as advance:
        for spec in plan.grid.tables:
            name = spec.name or spec.kind
            sheets[name] = _write_table(plan, spec, found, data, tables)
            advance(1, name)
        measured = _measure_gradients(plan, found, engine, progress)
        material = Material(plan, found.cells, found.groups, figures)
        drawn: list[Drawn] = []
        missing = []
        for figure in plan.grid.figures:
            name = figure.name or figure.kind
            made = draw(figure, material, measured.get(name))
            if made is None:
                missing.append(f"{name}: no finished cell has what it shows")
            else:
                drawn.append(made)
            advance(1, name)
    seeds = {len({cell.seed for cell in found.cells if cell.method == arm}) for arm in plan.grid.arms}
    page = render_page(
        "bench.html.j2",
        grid=plan.grid,
        kicker="MCPMix bench",
        sentences=[],
        sheets=sheets,
        figures=drawn,
        missing=missing,
        failures=found.failures,
        finished=len(found.cells),
        cells=len(plan.cells),
        caution=caution(min(seeds - {0}, default=1)),
        settings=yaml.safe_dump(plan.grid.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        versions=_versions(found),
    )
    write_text(plan.out / PAGE, page)
    return plan.out / PAGE


def _write_table(
    plan: Plan, spec: TableSpec, found: Outcome, data: Mapping[str, Artifact], folder: Path
) -> list[Sheet]:
    """Write one table as Markdown, LaTeX, CSV and JSON; its sheets are for the page."""
    name = spec.name or spec.kind
    rows: Sequence[Mapping[str, object]]
    if spec.kind == "pairs":
        banks = {
            group: facts
            for group, made in found.groups.items()
            if (facts := measure_bank(made.place(plan.groups[group].config), made)) is not None
        }
        sheets = [bank_sheet(spec.title or "Banks of pairs", banks)]
        content: Any = banks
        rows = [
            dict(zip(sheets[0].heading, (item.text for item in row), strict=True)) for row in sheets[0].rows
        ]
    else:
        table = build_table(plan, spec, found.cells, data)
        sheets, content, rows = to_sheets(table), table.as_json(), to_rows(table)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", content)
    write_text(folder / f"{name}.md", "\n".join(map(to_markdown, sheets)))
    labels = [name if not number else f"{name}-rivals" for number in range(len(sheets))]
    latex = [to_latex(sheet, label) for sheet, label in zip(sheets, labels, strict=True)]
    write_text(folder / f"{name}.tex", "\n".join(latex))
    if rows:
        write_csv(folder / f"{name}.csv", rows)
    return sheets


def _versions(found: Outcome) -> dict[str, str]:
    versions: dict[str, set[str]] = {}
    for scored in found.cells.values():
        for artifact in (scored.segmenter, *scored.evaluations.values()):
            for name, version in artifact.manifest["versions"].items():
                versions.setdefault(name, set()).add(version)
    return {name: " and ".join(sorted(values)) for name, values in versions.items()}


# --- short trainings for the analysis of gradients ----------------------------------------------------------


def _measure_gradients(
    plan: Plan, found: Outcome, engine: Engine, progress: Progress
) -> dict[str, dict[str, Boundary]]:
    """The analysis of each figure that wants one, by its name; those that are finished are reused."""
    tasks: dict[str, Callable[..., Artifact]] = {}
    for spec in plan.grid.figures:
        if spec.kind == "gradients" and (task := _gradient_task(plan, spec, found)) is not None:
            tasks[spec.name or spec.kind] = task
    made = {}
    for name, outcome in engine.run(tasks, progress) if tasks else ():
        if isinstance(outcome, BaseException):
            found.failures[f"figure {name}"] = f"{type(outcome).__name__}: {outcome}"
            progress.say(f"figure {name} failed: {outcome}")
        else:
            rows = json.loads((outcome / "gradients.json").read_text(encoding="utf-8"))["arms"]
            made[name] = {arm: Boundary(**row) for arm, row in rows.items()}
    return made


def _gradient_task(plan: Plan, spec: FigureSpec, found: Outcome) -> Callable[..., Artifact] | None:
    wanted = spec.arms or tuple(arm for arm in KINDS["mixing"].arms if arm in plan.grid.arms)
    cells = [cell for cell in plan.selected(spec) if cell in found.cells and cell.method in wanted]
    cells = [cell for cell in cells if cell.place[:2] == cells[0].place[:2]]
    cells = [cell for cell in cells if cell.segmenter == cells[0].segmenter]
    if not cells:
        return None
    tasks = {plan.cells[cell].arm: plan.cells[cell] for cell in cells}
    inputs = {arm: found.groups[task.group].inputs[arm] for arm, task in tasks.items()}
    made = found.groups[plan.cells[cells[0]].group]
    config = still(made.place(plan.cells[cells[0]].config), spec.epochs)
    return partial(measure_gradients, config, inputs, plan.out / "analysis" / (spec.name or spec.kind))


def measure_gradients(
    config: Config, inputs: Mapping[str, Inputs], out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Short trainings of all arms without augmentation, as a stage."""
    settings = {
        "size": config.data.size,
        "segmenter": config.segmenter.model_dump(mode="json"),
        "train": config.train.model_dump(mode="json", exclude={"arms", "strategies"}),
        "arms": {arm: arm_settings(config, arm) for arm in inputs},
    }
    digests = {
        f"{arm}/{name}": training_digest(item) if name == "dataset" else item.digest
        for arm, found in inputs.items()
        for name, item in vars(found).items()
        if isinstance(item, Artifact)
    }
    key = StageKey("gradients", settings, digests, config.seed)
    if (finished := reuse(out, key, progress)) is not None:
        return finished
    with workspace(out, key) as space:
        analyse(config, list(inputs), inputs.__getitem__, space.folder, runtime, progress)
        return space.finish(arms=len(inputs))
