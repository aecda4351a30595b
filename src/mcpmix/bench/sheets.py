"""Tables as texts: one layout for Markdown, LaTeX and the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Mark = Literal["", "best", "second", "theirs", "head"]


@dataclass(frozen=True)
class Item:
    """A cell of a sheet: its text, and what it is."""

    text: str
    mark: Mark = ""


@dataclass(frozen=True)
class Sheet:
    """A table to read. A row has the length of the heading, or one item, which heads the rows below."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[Item]]
    notes: Sequence[str] = ()


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
