import json

import pytest

from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.generator.bank import inspect_bank
from mcpmix.generator.ledger import Ledger, admitted_replicas, read_rows
from mcpmix.generator.review import Review, ReviewBook, open_review, read_review

KEY = StageKey("synthesize", {})


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
