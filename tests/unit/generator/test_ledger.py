import hashlib
import json

import pytest

from mcpmix.core.errors import StorageError
from mcpmix.generator.ledger import Ledger, admitted_replicas, kind_of, read_rows, read_verified

ROOT = "r" * 64


def row_of(parent="a", replica=0, admitted=True, **more):
    return {"parent": parent, "replica": replica, "admitted": admitted, **more}


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", ROOT)
    for replica in range(4):
        ledger.append(row_of(replica=replica, score=0.1 + replica / 3, note="naïve\u2028line"))
    return ledger


def edit(ledger, change):
    """Apply `change` to the list of the file's lines."""
    lines = ledger.path.read_text(encoding="utf-8").split("\n")[:-1]
    change(lines)
    ledger.path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def test_a_seal_is_a_plain_sha256_over_the_row_and_the_seal_before(ledger):
    rows = [json.loads(line) for line in ledger.path.read_text(encoding="utf-8").split("\n")[:-1]]
    previous = ROOT
    for each in rows:
        assert each["previous"] == previous
        previous = each.pop("sha256")
        text = json.dumps(each, sort_keys=True, separators=(",", ":"))
        assert hashlib.sha256(text.encode()).hexdigest() == previous
    assert ledger.head == previous


def test_it_is_read_back_and_continued_as_if_never_closed(ledger, tmp_path):
    again = Ledger(ledger.path, ROOT)
    assert again.rows == ledger.rows == read_rows(tmp_path)
    again.append(row_of(replica=4))
    assert read_verified(tmp_path, ROOT, again.head) == again.rows
    assert len(again.rows) == 5


def replace_score(lines):
    lines[2] = lines[2].replace('"score": 0.7666666666666666', '"score": 0.9')


def reseal_alone(lines):
    content = json.loads(lines[2])
    content["score"] = 0.9
    del content["sha256"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    lines[2] = json.dumps({**content, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def swap(lines):
    lines[1], lines[2] = lines[2], lines[1]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (replace_score, 3),
        (reseal_alone, 4),  # its own seal fits; the row after it no longer follows
        (swap, 2),
        (lambda lines: lines.pop(0), 1),
        (lambda lines: lines.insert(1, lines[0]), 2),
        (lambda lines: lines.__setitem__(3, "[]"), 4),
        (lambda lines: lines.__setitem__(1, lines[1][:20]), 2),
    ],
)
def test_a_changed_row_is_found_with_its_line(ledger, change, line):
    before = ledger.path.read_bytes()
    edit(ledger, change)
    assert ledger.path.read_bytes() != before
    with pytest.raises(StorageError, match=rf"ledger\.jsonl, line {line}: .*delete the folder"):
        Ledger(ledger.path, ROOT)


@pytest.mark.parametrize("change", [lambda lines: lines.pop(), lambda lines: lines.clear()])
def test_rows_missing_at_the_end_are_found_by_the_manifest(ledger, tmp_path, change):
    edit(ledger, change)
    with pytest.raises(StorageError, match="rows at the end are missing"):
        read_verified(tmp_path, ROOT, ledger.head)


def test_a_ledger_of_another_bank_is_found(ledger, tmp_path):
    with pytest.raises(StorageError, match="line 1"):
        read_verified(tmp_path, "b" * 64, ledger.head)


@pytest.mark.parametrize("kept", [1, 30, -1])
def test_a_line_cut_short_by_a_kill_is_cut_off(ledger, kept):
    whole = ledger.path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    ledger.path.write_bytes(whole[:start] + whole[start:][:kept])
    again = Ledger(ledger.path, ROOT)
    assert again.rows == ledger.rows[:3]
    again.append(
        {name: value for name, value in ledger.rows[3].items() if name not in ("previous", "sha256")}
    )
    assert ledger.path.read_bytes() == whole


def test_a_finished_ledger_may_not_be_cut_short_or_missing(ledger, tmp_path):
    ledger.path.write_bytes(ledger.path.read_bytes()[:-5])
    with pytest.raises(StorageError, match="line 4: it is cut short"):
        read_verified(tmp_path, ROOT, ledger.head)
    ledger.path.unlink()
    with pytest.raises(StorageError, match="is missing"):
        read_verified(tmp_path, ROOT, ledger.head)


def test_admitted_replicas_of_each_sample():
    rows = [
        row_of("a", 0, False),
        row_of("b", 1),
        row_of("a", 2),
        row_of("a", 0),
        row_of("c", 0, False),
        row_of("z", 0),
    ]
    assert admitted_replicas(rows, ["a", "b", "c"]) == [(0, 2), (1,), ()]


def test_a_reason_without_its_figures():
    assert kind_of("alignment: 0.10 < 0.50") == "alignment"
    assert kind_of("too dark") == "too dark"
