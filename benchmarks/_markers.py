"""Generated parts of documents: what stands between `<!-- name -->` and `<!-- /name -->`."""

from pathlib import Path


def fill(document: Path, name: str, text: str) -> None:
    """Replace a generated part of a document.

    Args:
        document: a Markdown file that holds both markers.
        name: of the part.
        text: the new content, without line breaks around it.

    Raises:
        SystemExit: the document lacks a marker.
    """
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, opened, rest = document.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise SystemExit(f"{document} has no place for {name!r}: put {start} and {end} where it belongs.")
    document.write_text(f"{before}{start}\n{text}\n{end}{after}", encoding="utf-8")
