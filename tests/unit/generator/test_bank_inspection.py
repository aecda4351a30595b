import json

import numpy as np
import pytest

from mcpmix.core.errors import StorageError
from mcpmix.core.stage_folder import StageKey, file_digest, workspace
from mcpmix.generator.bank import inspect_bank, place_of, write_synthetic
from mcpmix.generator.ledger import Ledger

KEY = StageKey("synthesize", {})


def fill(folder, count=3):
    ledger = Ledger(folder / "ledger.jsonl", KEY.digest).open()
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


def test_a_bank_without_seals_is_not_accused(pairs):
    manifest = json.loads((pairs / "manifest.json").read_text())
    del manifest["counts"]["ledger"]
    (pairs / "manifest.json").write_text(json.dumps(manifest))
    assert "earlier version" in inspect_bank(pairs)


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
