import pytest

from mcpmix.bench.state import (
    REAL,
    Cell,
    Listed,
    home_of,
    list_cells,
    listed_cells,
    read_failures,
    relative,
    write_failures,
)

CELL = Cell("data", "5pc", REAL, "net", "full-sup", 3)


def test_a_list_of_cells_is_read_as_it_was_written(tmp_path):
    listed = [Listed(CELL, "Full-Sup", "data/5pc/g", "inputs/data/5pc/g", 8, path) for path in (None, "a/b")]
    list_cells(tmp_path / "toy", listed)
    assert listed_cells(tmp_path / "toy") == listed


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '[{"cell": {}}]', '[{"cell": {"dataset": "a"}}]'])
def test_what_is_not_a_list_of_cells_is_none(tmp_path, content):
    if content is not None:
        (tmp_path / "cells.json").write_text(content)
    assert listed_cells(tmp_path) == []


def test_where_a_cell_is_and_how_far(tmp_path):
    home = home_of(tmp_path, CELL)
    assert (
        relative(tmp_path, home.stage("evaluation")) == "cells/data/5pc/real/net/evaluation/full-sup/seed-3"
    )
    assert relative(tmp_path / "verdict", tmp_path) == ".."
    assert home.epochs_done == 0
    log = home.stage("segmenter").with_name("seed-3.partial") / "log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("{}\n{}\n{")
    assert home.epochs_done == 2


def test_failures_are_kept_until_the_next_run(tmp_path):
    assert read_failures(tmp_path) == {}
    write_failures(tmp_path, {CELL.name: "why"})
    assert read_failures(tmp_path) == {"data/5pc/real/net/full-sup/seed-3": "why"}
    write_failures(tmp_path, {})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "failures.json").write_text("[1]")
    assert read_failures(tmp_path) == {}
