"""Logs as JSON lines, also after a kill."""

import json

import pytest

from mcpmix.core.errors import StorageError
from mcpmix.core.jsonl import JsonLines


@pytest.fixture
def log(tmp_path):
    return JsonLines(tmp_path / "log.jsonl")


def test_a_log_that_does_not_exist_has_no_rows(log):
    assert log.rows() == []
    assert not log.path.exists()


def test_rows_come_back_in_order_with_their_values(log):
    log.append(epoch=1, loss=0.1 + 0.2, validation={"dsc": 71.5}, note=None)
    log.append(epoch=2, loss=0.25)

    assert log.rows() == [
        {"epoch": 1, "loss": 0.1 + 0.2, "validation": {"dsc": 71.5}, "note": None},
        {"epoch": 2, "loss": 0.25},
    ]


def test_each_row_is_a_line_of_its_own_and_readable_text(log):
    log.append(id="Bärbel", epoch=1)
    log.append(id="two\nlines", epoch=2)

    lines = log.path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["Bärbel", "two\nlines"]
    assert "Bärbel" in lines[0]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1e", "\r"])
def test_unicode_line_separators_inside_a_value_do_not_cut_the_row(log, separator):
    log.append(id=f"a{separator}b")
    log.append(id="next")

    assert [row["id"] for row in log.rows()] == [f"a{separator}b", "next"]


def test_a_row_cut_short_anywhere_by_a_kill_is_left_out(log):
    log.append(epoch=1)
    whole = log.path.read_bytes()
    log.append(epoch=2, id="Bärbel")
    last = log.path.read_bytes()[len(whole) :]

    for length in range(len(last) - 2):  # up to and without the closing brace, also inside of "ä"
        log.path.write_bytes(whole + last[:length])
        assert log.rows() == [{"epoch": 1}], f"cut after {length} bytes"


def test_damage_before_the_last_row_is_told_with_its_line(log):
    for epoch in (1, 2, 3):
        log.append(epoch=epoch)
    log.path.write_bytes(log.path.read_bytes().replace(b'{"epoch": 2}', b'{"epoch": '))

    with pytest.raises(StorageError, match=r"log\.jsonl, line 2, is not JSON .* delete its folder"):
        log.rows()


def test_a_resumed_run_rewrites_what_it_keeps_and_appends(log):
    for epoch in (1, 2, 3):
        log.append(epoch=epoch)
    with log.path.open("a") as file:
        file.write('{"epoch": 4, "lo')  # killed here

    log.rewrite(row for row in log.rows() if row["epoch"] <= 2)
    log.append(epoch=3, again=True)

    assert log.rows() == [{"epoch": 1}, {"epoch": 2}, {"epoch": 3, "again": True}]
    assert [path.name for path in log.path.parent.iterdir()] == ["log.jsonl"]


def test_a_failed_rewrite_leaves_the_old_rows(log):
    log.append(epoch=1)

    with pytest.raises(TypeError, match="not JSON serializable"):
        log.rewrite([{"epoch": 1}, {"epoch": object()}])

    assert log.rows() == [{"epoch": 1}]


def test_a_row_that_is_not_json_writes_nothing(log):
    with pytest.raises(TypeError, match="not JSON serializable"):
        log.append(epoch=1, value=object())

    assert log.rows() == []
