import hashlib
import json

import numpy as np
import pytest

from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.files import file_digest
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.generator.ledger import (
    Ledger,
    Review,
    ReviewBook,
    admitted_replicas,
    inspect_bank,
    kind_of,
    open_review,
    place_of,
    read_review,
    read_rows,
    read_verified,
    write_synthetic,
)

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


# --- the images of a bank ----------------------------------------------------------------------------------

KEY = StageKey("synthesize", {})


def fill(folder, count=3):
    ledger = Ledger(folder / "ledger.jsonl", KEY.digest)
    for replica in range(count):
        file = place_of("a", replica, 0, admitted=replica > 0)
        write_synthetic(folder / file, np.full((4, 4, 3), replica, np.uint8), run="r", seed=replica)
        row = {"parent": "a", "replica": replica, "try": 0, "admitted": replica > 0, "file": file.as_posix()}
        ledger.append({**row, "image_sha256": file_digest(folder / file)})
    return ledger


@pytest.fixture
def pairs(tmp_path):
    with workspace(tmp_path / "pairs", KEY) as space:
        ledger = fill(space.folder)
        space.finish(ledger=ledger.head)
    return tmp_path / "pairs"


@pytest.fixture
def unfinished(tmp_path):
    with workspace(tmp_path / "pairs", KEY) as space:
        fill(space.folder)
    return tmp_path / "pairs.partial"


def test_a_whole_bank_is_described(pairs):
    assert inspect_bank(pairs) == "2 admitted of 3 images tried; ledger and images are whole"


def test_no_bank_is_no_problem(tmp_path):
    assert inspect_bank(tmp_path / "pairs") == "none yet"


def test_damaged_and_missing_images_are_all_named(pairs):
    (pairs / "images/a/1.png").write_bytes(b"x")
    (pairs / "rejected/a/0-0.png").unlink()
    with pytest.raises(StorageError, match=r"(?s)mcpmix synthesize.*rejected/a/0-0\.png.*images/a/1\.png"):
        inspect_bank(pairs)


@pytest.mark.parametrize("folder", ["pairs", "unfinished"])
def test_an_edited_row_is_named(folder, tmp_path, request):
    path = request.getfixturevalue(folder) / "ledger.jsonl"
    path.write_text(path.read_text().replace('"replica": 1', '"replica": 7'))
    with pytest.raises(StorageError, match="line 2: its content does not match"):
        inspect_bank(tmp_path / "pairs")


def test_an_unfinished_bank_may_end_in_a_torn_line_and_is_left_alone(unfinished, tmp_path):
    path = unfinished / "ledger.jsonl"
    torn = path.read_bytes()[:-9]
    path.write_bytes(torn)
    assert inspect_bank(tmp_path / "pairs") == "unfinished, 2 images tried so far; the ledger is whole"
    assert path.read_bytes() == torn


# --- what people say ---------------------------------------------------------------------------------------


@pytest.fixture
def bank(tmp_path):
    """Two masks with two places each; of b, one image was rejected for alignment and one as a copy."""
    with workspace(tmp_path / "pairs", KEY) as space:
        ledger = Ledger(space.folder / "ledger.jsonl", KEY.digest)
        tried = [("a", 0, []), ("a", 1, []), ("b", 0, ["alignment: 0.1 < 0.5"]), ("b", 1, ["copy: of a"])]
        for parent, replica, reasons in tried:
            folder = "rejected" if reasons else "images"
            content = {"parent": parent, "replica": replica, "try": 0, "image_sha256": f"{parent}{replica}"}
            file = f"{folder}/{parent}/{replica}{'-0' if reasons else ''}.png"
            ledger.append({**content, "file": file, "admitted": not reasons, "reasons": reasons})
        return space.finish(ledger=ledger.head)


@pytest.fixture
def rows(bank):
    return read_rows(bank.folder)


def test_without_a_word_nothing_changes(bank, rows):
    assert read_review(bank) is None
    book = ReviewBook(bank)
    book.judge(rows[0], "Ada", "accept", "fine")  # the machine says so too
    assert read_review(bank) == Review((), reviewers=1, accepted=1)
    book.judge(rows[0], "Ada", "withdraw")
    assert read_review(bank) is None


def test_people_take_out_and_bring_back(bank, rows):
    book = ReviewBook(bank)
    book.judge(rows[0], "Ada", "reject", "no vessels")
    book.judge(rows[2], "Ada", "accept")
    review = read_review(bank)
    assert review.changes == (("images/a/0.png", False), ("rejected/b/0-0.png", True))
    assert review.sentence == (
        "2 counterparts were judged by 1 reviewer: 1 accepted, 1 rejected. Training used this: 1 of the "
        "admitted were left out, 1 that admission had rejected were taken."
    )
    applied = review.apply(rows)
    assert admitted_replicas(applied, ["a", "b"]) == [(1,), (2,)]  # 2: not a place that a later try may fill
    assert [row["admitted"] for row in rows] == [True, True, False, False]


def test_one_rejection_outweighs_acceptances_and_the_last_word_counts(bank, rows):
    book = ReviewBook(bank)
    for who, verdict in (("Ada", "accept"), ("Ben", "reject"), ("Cem", "accept")):
        book.judge(rows[2], who, verdict)
    assert read_review(bank) == Review((), reviewers=3, rejected=1)
    book.judge(rows[2], "Ben", "accept")
    assert read_review(bank) == Review((("rejected/b/0-0.png", True),), reviewers=3, accepted=1)
    for who in ("Ada", "Ben", "Cem"):
        book.judge(rows[2], who, "withdraw")
    assert read_review(bank) is None


def test_a_copy_cannot_be_accepted(bank, rows):
    with pytest.raises(DataError, match=r"b/1-0\.png was rejected as the copy"):
        ReviewBook(bank).judge(rows[3], "Ada", "accept")
    assert ReviewBook(bank).rows() == []


@pytest.mark.parametrize(("who", "verdict", "message"), [("  ", "accept", "Nobody"), ("Ada", "yes", "'yes'")])
def test_a_judgement_needs_a_name_and_a_verdict(bank, rows, who, verdict, message):
    with pytest.raises(DataError, match=message):
        ReviewBook(bank).judge(rows[0], who, verdict)


def test_rows_say_who_when_what_and_are_sealed(bank, rows):
    row = ReviewBook(bank).judge(rows[1], " Ada ", "reject", " too red ")
    assert (row["who"], row["word"], row["parent"], row["image_sha256"]) == ("Ada", "too red", "a", "a1")
    assert row["when"].endswith("+00:00")
    assert row["previous"] == bank.digest
    path = open_review(bank).path
    path.write_text(path.read_text().replace("reject", "accept"))
    for read in (
        lambda: read_review(bank),
        lambda: inspect_bank(bank.folder),
    ):  # the latter: `check`
        with pytest.raises(StorageError, match=r"line 1: its content .* to review again"):
            read()


def test_two_writers_share_one_chain(bank, rows):
    first, second = ReviewBook(bank), ReviewBook(bank)
    first.judge(rows[0], "Ada", "reject")
    second.judge(rows[1], "Ben", "reject")
    first.note_blind("Ada", {"shown": 4, "hits": 2})
    assert (
        [row["who"] for row in first.rows()] == [row["who"] for row in second.rows()] == ["Ada", "Ben", "Ada"]
    )
    assert len(open_review(bank).rows) == 3


def test_the_bank_stays_untouched_and_another_bank_is_not_reviewed(bank, rows, tmp_path):
    before = {path: path.read_bytes() for path in bank.folder.rglob("*") if path.is_file()}
    ReviewBook(bank).judge(rows[0], "Ada", "reject")
    assert before == {path: path.read_bytes() for path in bank.folder.rglob("*") if path.is_file()}
    other = StageKey("synthesize", {"steps": 9})
    with workspace(bank.folder, other) as space:
        (space.folder / "ledger.jsonl").write_text(json.dumps(rows[0]) + "\n")
        assert read_review(space.finish()) is None
