"""docs/architecture.md names files that exist, and an afternoon's reading that fits into one."""

import re
from pathlib import Path

from tests.architecture.test_layers import ORDER

import mcpmix

PACKAGE = Path(mcpmix.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_file_of_the_map_exists():
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE)) - {"tests/architecture/test_layers.py"}

    assert len(named) > 20
    assert [name for name in sorted(named) if not (PACKAGE / name).exists()] == []


def test_the_reading_takes_an_afternoon():
    listed = re.findall(r"^\d+\. `(.+\.py)`", PAGE, re.MULTILINE)
    lines = sum(len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in listed)

    assert len(listed) == len(set(listed)) == 15
    assert lines <= 3500


def test_the_picture_has_the_layers_in_their_order():
    picture = PAGE[PAGE.index("flowchart TB") :]
    places = [re.search(rf"\b{part}\b[:,]", picture).start() for part in ORDER if part != "__main__"]

    assert places == sorted(places)
