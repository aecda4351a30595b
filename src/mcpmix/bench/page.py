"""The results of a grid: every table in five formats, every figure, and one self-contained page."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from mcpmix.bench.banks import bank_sheet, measure_banks
from mcpmix.bench.cells import Outcome
from mcpmix.bench.engines import Engine
from mcpmix.bench.figures import Drawn, draw, require_umap
from mcpmix.bench.gradients import measure_all
from mcpmix.bench.grid import Plan, TableSpec
from mcpmix.bench.tables import Item, Sheet, build_table, plain, to_rows, to_sheets
from mcpmix.core.files import write_json, write_text
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.tables import write_csv
from mcpmix.report import render_page
from mcpmix.report.sentences import caution

PAGE = "index.html"
_MARKDOWN = {"": "{}", "best": "**{}**", "second": "<u>{}</u>", "theirs": "*{}*", "head": "**{}**"}
_LATEX = {
    "": "{}",
    "best": r"\textbf{{{}}}",
    "second": r"\underline{{{}}}",
    "theirs": r"\textit{{{}}}",
    "head": r"\textbf{{{}}}",
}
_ESCAPES = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "†": r"$^\dagger$",
    "Δ": r"$\Delta$",
    "ρ": r"$\rho$",
    "≥": r"$\geq$",
}


def require_packages(plan: Plan) -> None:
    """Refuse, before anything is trained, figures whose package is missing."""
    if any(spec.kind == "distribution" for spec in plan.grid.figures):
        require_umap()


def write_results(found: Outcome, engine: Engine, progress: Progress = SILENT) -> Path:
    """Draw all tables and figures of what is finished; returns the page."""
    grid, sheets, figures, missing = found.plan.grid, {}, [], []
    with progress.track("tables and figures", len(grid.tables) + len(grid.figures)) as advance:
        for table in grid.tables:
            sheets[table.stem] = write_table(found, table)
            advance(1, table.stem)
        measured = measure_all(found, engine, progress)
        for spec in grid.figures:
            drawn = draw(spec, found, measured.get(spec.stem))
            if drawn is None:
                missing.append(f"{spec.stem}: no finished cell has what it shows")
            else:
                figures.append(drawn)
            advance(1, spec.stem)
    seeds = {len({cell.seed for cell in found.cells if cell.method == arm}) for arm in grid.arms}
    versions: dict[str, set[str]] = {}
    for scored in found.cells.values():
        for artifact in (scored.segmenter, *scored.evaluations.values()):
            for name, version in artifact.manifest["versions"].items():
                versions.setdefault(name, set()).add(version)
    return write_page(
        found,
        PAGE,
        kicker="MCPMix bench",
        sheets=sheets,
        figures=figures,
        missing=missing,
        caution=caution(min(seeds - {0}, default=1)),
        settings=yaml.safe_dump(grid.model_dump(mode="json"), sort_keys=False, allow_unicode=True),
        versions={name: " and ".join(sorted(values)) for name, values in versions.items()},
    )


def write_page(
    found: Outcome, name: str, sheets: Mapping[str, Sequence[Sheet]], figures: Sequence[Drawn], **more: object
) -> Path:
    """A page in the folder of a grid, which needs neither network nor scripts; returns its path.

    Args:
        more: further values of the template; `kicker` and `caution` are needed.
    """
    defaults = {"sentences": [], "missing": [], "settings": "", "versions": {}}
    text = render_page(
        "bench.html.j2",
        grid=found.plan.grid,
        sheets=sheets,
        figures=figures,
        failures=found.failures,
        finished=len(found.cells),
        cells=len(found.plan.cells),
        **(defaults | more),
    )
    write_text(found.plan.out / name, text)
    return found.plan.out / name


def write_table(found: Outcome, spec: TableSpec) -> list[Sheet]:
    """Write one table as Markdown, LaTeX, CSV and JSON; its sheets are for the page."""
    rows: Sequence[Mapping[str, object]]
    if spec.kind == "pairs":
        banks = {
            f"{name}: {who}": facts
            for name, made in found.groups.items()
            for who, facts in measure_banks(made.place(found.plan.groups[name].config), made).items()
        }
        sheets, content = [bank_sheet(spec.title or "Synthetic images", banks)], banks
        heading = sheets[0].heading
        rows = [dict(zip(heading, (item.text for item in row), strict=True)) for row in sheets[0].rows]
    else:
        table = build_table(found, spec)
        sheets, content, rows = to_sheets(table), plain(asdict(table)), to_rows(table)
    folder, name = found.plan.out / "tables", spec.stem
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", content)
    write_text(folder / f"{name}.md", "\n".join(map(to_markdown, sheets)))
    labels = (name, f"{name}-rivals")
    latex = [to_latex(sheet, label) for sheet, label in zip(sheets, labels, strict=False)]
    write_text(folder / f"{name}.tex", "\n".join(latex))
    if rows:
        write_csv(folder / f"{name}.csv", rows)
    return sheets


def to_markdown(sheet: Sheet) -> str:
    """A heading, the table, its notes."""
    width = len(sheet.heading)
    lines = [list(sheet.heading), ["---", *["---:"] * (width - 1)]]
    for row in sheet.rows:
        cells = [
            _MARKDOWN[item.mark].format(item.text.replace("|", r"\|")) if item.text else "" for item in row
        ]
        lines.append([*cells, *[""] * (width - len(cells))])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return "\n".join([f"### {sheet.title}\n", table, *(f"{note}\n" for note in sheet.notes)])


def to_latex(sheet: Sheet, label: str) -> str:
    r"""A `table` for a paper that loads `booktabs`."""
    width = len(sheet.heading)
    body: list[str] = []
    for row in sheet.rows:
        if len(row) == 1:
            rule = [r"\midrule"] if body else []
            body += [*rule, rf"\multicolumn{{{width}}}{{l}}{{{_latex(row[0])}}} \\", r"\midrule"]
        else:
            body.append(" & ".join(map(_latex, row)) + r" \\")
    heading = " & ".join(map(_escaped, sheet.heading)) + r" \\"
    notes = [rf"\par\footnotesize {_escaped(note)}" for note in sheet.notes]
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{_escaped(sheet.title)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}",
            r"\toprule",
            heading,
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *notes,
            r"\end{table}",
            "",
        ]
    )


def _latex(item: Item) -> str:
    return _LATEX[item.mark].format(_escaped(item.text)) if item.text else ""


def _escaped(text: str) -> str:
    return "".join(_ESCAPES.get(sign, sign) for sign in text)
