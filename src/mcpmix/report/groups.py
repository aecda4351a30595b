"""Guessed groups as a self-contained HTML page, a contact sheet for each, to be corrected by hand."""

from collections import defaultdict
from collections.abc import Sequence

from PIL import Image

from mcpmix.data.facts import Facts
from mcpmix.data.groups import Guess, file_order
from mcpmix.report import render_page
from mcpmix.report.pictures import jpeg_uri


def as_page(facts: Sequence[Facts], guess: Guess, table: str) -> str:
    """The page; `table` is the name of the CSV that a reader corrects. Images stand in the order of files."""
    sheets: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for place in file_order(facts, guess.order or "name"):
        item = facts[place]
        picture = "" if item.thumbnail is None else jpeg_uri(Image.fromarray(item.thumbnail))
        sheets[guess.group_of[item.sample.id]].append((item.sample.id, picture))
    return render_page("groups.html.j2", sheets=sheets, lines=list(guess.lines()), table=table)
