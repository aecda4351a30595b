"""Stage folders: finished by their manifest, reused, resumed, locked, and safe on a full disk."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mcpmix.core.errors import StorageError
from mcpmix.core.files import storage_errors, write_text
from mcpmix.core.progress import SILENT
from mcpmix.core.stage_folder import (
    Artifact,
    StageKey,
    asked_before_redoing,
    changes,
    digest_of,
    read_artifact,
    reuse,
    workspace,
)
from mcpmix.core.training import save_state

KEY = StageKey("train", {"epochs": 100, "arms": ["a", "b"]}, {"pairs": "f00"}, seed=3)
OTHER = StageKey("train", {"epochs": 50, "arms": ["a", "b"]}, {"pairs": "f00"}, seed=3)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "run" / "train"


def make(target, key, text="result"):
    """Run a stage that writes one file."""
    with workspace(target, key) as space:
        (space.folder / "weights.txt").write_text(text)
        return space.finish(files=1)


def interrupt(target, key, text="half"):
    """Run a stage that is stopped before its end."""

    def work():
        with workspace(target, key) as space:
            (space.folder / "checkpoint.txt").write_text(text)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()


def finish_with(target, monkeypatch, replace):
    """Run the stage of KEY with another `os.replace` while it finishes."""
    with workspace(target, KEY) as space:
        (space.folder / "checkpoint.txt").write_text("all epochs")
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            space.finish()


def contents(folder):
    return sorted(path.name for path in folder.iterdir())


class TestDigests:
    def test_order_of_keys_does_not_count_and_values_do(self):
        assert digest_of({"a": 1, "b": [1, 2]}) == digest_of({"b": [1, 2], "a": 1})
        assert digest_of({"a": 1, "b": [1, 2]}) != digest_of({"a": 1, "b": [2, 1]})
        assert digest_of({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()

    @pytest.mark.parametrize(
        "other",
        [
            StageKey("depth", KEY.settings, KEY.inputs, 3),
            StageKey("train", {**KEY.settings, "epochs": 50}, KEY.inputs, 3),
            StageKey("train", KEY.settings, {"pairs": "f01"}, 3),
            StageKey("train", KEY.settings, KEY.inputs, 4),
        ],
    )
    def test_every_part_of_a_key_counts(self, other):
        assert other.digest != KEY.digest

    def test_a_key_is_the_same_before_and_after_json(self):
        key = StageKey("train", {"arms": ("a", "b"), "path": Path("x/y")})

        assert key.as_json()["settings"] == {"arms": ["a", "b"], "path": "x/y"}
        assert json.loads(json.dumps(key.as_json())) == key.as_json()


class TestFinishing:
    def test_a_finished_folder_has_everything_and_nothing_else(self, target):
        artifact = make(target, KEY)

        assert contents(target) == ["manifest.json", "weights.txt"]
        assert (artifact / "weights.txt").read_text() == "result"
        assert artifact.digest == KEY.digest
        assert artifact.manifest["key"] == KEY.as_json()
        assert artifact.manifest["counts"] == {"files": 1}
        assert set(artifact.manifest["versions"]) >= {"python", "torch", "numpy", "mcpmix"}
        assert read_artifact(target) == artifact

    def test_the_manifest_is_written_last(self, target):
        with workspace(target, KEY) as space:
            (space.folder / "weights.txt").write_text("result")
            assert not target.exists()
            assert read_artifact(space.folder) is None
            space.finish()
        assert read_artifact(target) is not None
        assert not space.folder.exists()

    def test_an_unfinished_stage_leaves_no_artefact(self, target):
        interrupt(target, KEY)

        assert read_artifact(target) is None
        assert reuse(target, KEY, SILENT) is None
        assert not target.exists()

    def test_reuse_needs_exactly_the_same_key(self, target):
        artifact = make(target, KEY)

        assert reuse(target, KEY, SILENT) == artifact
        assert reuse(target, OTHER, SILENT) is None

    def test_somebody_may_be_asked_before_it_is_made_again(self, target):
        make(target, KEY)
        asked = []
        with asked_before_redoing(lambda *what: asked.append(what)):
            assert reuse(target, KEY, SILENT) is not None
            assert asked == []
            reuse(target, OTHER, SILENT, "a name")
        ((name, seconds, reason),) = asked
        assert name == "a name"
        assert 0 <= seconds < 60
        assert " is " in reason
        assert ", was " in reason
        reuse(target, OTHER, SILENT)
        assert len(asked) == 1


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_have_the_permissions_of_the_umask_those_of_safetensors_too(target, mask, mode):
    before = os.umask(mask)
    try:
        with workspace(target, KEY) as space:
            save_file({"a": torch.zeros(1)}, space.folder / "model.safetensors")
            save_state(space.folder / "kept.safetensors", {"a": torch.zeros(1)})
            write_text(space.folder / "text.md", "text")
            assert (space.folder / "kept.safetensors").stat().st_mode & 0o777 == mode
            space.finish()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in target.iterdir()}
    assert len(modes) == 4
    assert set(modes.values()) == {mode}


class TestChanges:
    def test_each_changed_field_is_named_with_both_values(self, target):
        old = StageKey("train", {"train": {"epochs": 100, "flip": True}, "size": 64}, {"pairs": "a" * 64}, 0)
        new = StageKey("train", {"train": {"epochs": 50, "flip": True}, "size": 64}, {"pairs": "b" * 64}, 1)
        artifact = make(target, old)

        assert changes(artifact, old) == []
        assert changes(artifact, new) == [
            "its pairs changed",
            "seed is 1, was 0",
            "train.epochs is 50, was 100",
        ]

    def test_a_setting_that_is_new_or_gone_is_a_change_even_if_it_is_none(self):
        old = StageKey("train", {"gone": None})
        new = StageKey("train", {"new": None})
        artifact = Artifact(Path("x"), {"digest": old.digest, "key": old.as_json()})

        assert changes(artifact, new) == ["gone is absent, was None", "new is None, was absent"]


class TestResuming:
    def test_the_partial_folder_of_the_same_key_is_continued(self, target):
        interrupt(target, KEY)

        with workspace(target, KEY) as space:
            assert (space.folder / "checkpoint.txt").read_text() == "half"

    def test_the_partial_folder_of_another_key_is_discarded(self, target):
        interrupt(target, KEY)

        with workspace(target, OTHER) as space:
            assert not (space.folder / "checkpoint.txt").exists()

    @pytest.mark.parametrize("marker", [b"", b"{", b"[]", b"{}", b"\xff"])
    def test_a_partial_folder_with_a_damaged_key_is_discarded(self, target, marker):
        interrupt(target, KEY)
        partial = target.with_name("train.partial")
        (partial / "key.json").write_bytes(marker)

        with workspace(target, KEY) as space:
            assert contents(space.folder) == ["key.json"]

    def test_work_goes_on_while_the_old_result_is_still_there(self, target):
        make(target, KEY, "old")
        interrupt(target, OTHER)

        assert (target / "weights.txt").read_text() == "old"
        assert reuse(target, KEY, SILENT) is not None

    @pytest.mark.parametrize("step", [1, 2, 3])
    def test_a_kill_at_any_point_of_finishing_costs_nothing(self, target, monkeypatch, step):
        """finish() renames three times: the manifest, the old result to the shelf, the new one into place."""
        make(target, OTHER, "old")
        rename, calls = os.replace, []

        def killed(source, destination):
            calls.append(source)
            if len(calls) == step:
                raise KeyboardInterrupt
            rename(source, destination)

        with pytest.raises(KeyboardInterrupt):
            finish_with(target, monkeypatch, killed)

        with workspace(target, KEY) as space:
            assert (space.folder / "checkpoint.txt").read_text() == "all epochs"
            space.finish()
        old = target.parent / "superseded" / f"train-{OTHER.digest[:8]}"
        assert (old / "weights.txt").read_text() == "old"
        assert contents(target) == ["checkpoint.txt", "manifest.json"]


class TestSuperseding:
    def test_a_result_of_other_settings_is_kept_on_the_shelf(self, target):
        make(target, KEY, "old")
        make(target, OTHER, "new")

        shelf = target.parent / "superseded"
        assert (target / "weights.txt").read_text() == "new"
        assert contents(shelf) == [f"train-{KEY.digest[:8]}"]
        shelved = read_artifact(shelf / f"train-{KEY.digest[:8]}")
        assert shelved is not None
        assert (shelved / "weights.txt").read_text() == "old"

    def test_going_back_and_forth_keeps_one_of_each(self, target):
        for key in (KEY, OTHER, KEY, OTHER):
            make(target, key)

        assert contents(target.parent / "superseded") == sorted(
            [f"train-{KEY.digest[:8]}", f"train-{OTHER.digest[:8]}"]
        )

    def test_folders_that_no_stage_made_are_never_overwritten(self, target):
        for text in ("first", "second"):
            target.mkdir(parents=True)
            (target / "notes.txt").write_text(text)
            make(target, KEY)
            for path in target.iterdir():
                path.unlink()
            target.rmdir()

        shelf = target.parent / "superseded"
        assert [(shelf / name / "notes.txt").read_text() for name in contents(shelf)] == ["first", "second"]


class TestDamage:
    @pytest.mark.parametrize("manifest", [b"", b'{"digest": "ab', b"[]", b'{"digest": "ab"}', b"\xff\xfe"])
    def test_a_damaged_manifest_is_named_and_nothing_is_deleted(self, target, manifest):
        make(target, KEY)
        (target / "manifest.json").write_bytes(manifest)

        with pytest.raises(
            StorageError, match=r"manifest\.json is damaged .*delete the folder .* to redo the stage\."
        ):
            reuse(target, KEY, SILENT)
        assert (target / "weights.txt").read_text() == "result"


HOLDER = """
import sys
from pathlib import Path
from mcpmix.core.stage_folder import StageKey, workspace

with workspace(Path(sys.argv[1]), StageKey("train", {})):
    print("held", flush=True)
    sys.stdin.read()
"""


class TestLock:
    def test_a_folder_in_use_by_another_process_is_refused(self, target):
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with holder:
            assert holder.stdout.readline() == b"held\n"
            message = r"run/train is in use by another run\. Wait for it, or choose another name or output"
            with pytest.raises(StorageError, match=message), workspace(target, KEY):
                pytest.fail("two runs in one folder")
            holder.kill()  # the kernel frees the lock of a killed run
            holder.wait()
        make(target, KEY)

        assert reuse(target, KEY, SILENT) is not None

    def test_other_stages_of_the_run_are_not_locked(self, target):
        with workspace(target, KEY):
            make(target.with_name("depth"), StageKey("depth", {}))

    def test_the_lock_is_released_after_an_error(self, target):
        interrupt(target, KEY)

        make(target, KEY)


class TestFullDisk:
    FULL = r"The disk that holds .*train is full\. Finished stages and the last checkpoint are kept"

    def test_a_full_disk_while_finishing_loses_nothing(self, target, monkeypatch):
        make(target, OTHER, "old")

        def full(source, destination):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source))

        with pytest.raises(StorageError, match=self.FULL):
            finish_with(target, monkeypatch, full)

        assert reuse(target, OTHER, SILENT) is not None
        assert (target / "weights.txt").read_text() == "old"
        with workspace(target, KEY) as space:  # there is space again
            assert (space.folder / "checkpoint.txt").read_text() == "all epochs"
            space.finish()
        assert reuse(target, KEY, SILENT) is not None

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the always full device of Linux")
    def test_a_real_write_error_becomes_the_message(self, target):
        with workspace(target, KEY) as space:
            (space.folder / "manifest.json.tmp").symlink_to("/dev/full")

        with pytest.raises(StorageError, match=self.FULL), workspace(target, KEY) as space:
            space.finish()

        assert read_artifact(target) is None
        assert read_artifact(target.with_name("train.partial")) is None

    def test_a_folder_that_disappears_is_named_once_for_all_that_was_in_it(self, target):
        def work(name):
            with workspace(target.with_name(name), KEY) as space:
                shutil.rmtree(target.parent)
                (space.folder / "checkpoint.txt").write_text("x")

        texts = []
        for name in ("full-sup", "mcpmix"):
            with pytest.raises(StorageError, match=f"{target.parent} has disappeared") as caught:
                work(name)
            texts.append(str(caught.value))
        assert texts[0] == texts[1]
        with pytest.raises(StorageError, match="run has disappeared"), storage_errors(target):
            raise RuntimeError("Error while serializing: No such file or directory (os error 2)")

    def test_a_file_where_the_output_folder_should_be(self, target):
        target.parent.parent.mkdir(exist_ok=True)
        target.parent.write_text("I am a file")

        with (
            pytest.raises(StorageError, match=r"Cannot make the folder .*run: a file is in the way\."),
            workspace(target, KEY),
        ):
            pytest.fail("worked in a file")
