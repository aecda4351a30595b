import importlib.util
import math

import pytest

from mcpmix.core.errors import DependencyError
from mcpmix.run import run
from mcpmix.segmenter import track
from mcpmix.segmenter.track import flat_values, tracker

ROWS = [
    {"epoch": n, "loss": 1 / n, "discrepancy": math.nan, "validation": {"dsc": 10.0 * n}} for n in (1, 2, 3)
]


def events(folder):
    """Scalars as TensorBoard itself reads them: name to (step, value)."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return {name: [(row.step, row.value) for row in found.Scalars(name)] for name in found.Tags()["scalars"]}


def test_figures_are_flat_finite_and_without_the_epoch():
    assert flat_values(ROWS[0]) == {"loss": 1.0, "validation/dsc": 10.0}


def test_tensorboard_reads_what_the_log_says_also_after_a_resume(tmp_path):
    with tracker("tensorboard", tmp_path, "full-sup/seed-0", []) as write:
        for row in ROWS[:2]:
            write(row)
    with tracker("tensorboard", tmp_path, "full-sup/seed-0", ROWS[:1]) as write:  # epoch 2 is repeated
        for row in ROWS[1:]:
            write(row)
    found = events(tmp_path / "track" / "tensorboard" / "full-sup" / "seed-0")
    assert found["validation/dsc"] == [(1, 10.0), (2, 20.0), (3, 30.0)]
    assert [step for step, _ in found["loss"]] == [1, 2, 3]
    assert "discrepancy" not in found


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, name):
    monkeypatch.setattr(track, "find_spec", lambda _: None)
    with pytest.raises(DependencyError, match=rf"track\.{name} needs .* 'mcpmix\[track\]'"):
        tracker(name, tmp_path, "a/seed-0", []).__enter__()


def test_a_run_fills_it_and_its_key_does_not_change(make_config, tmp_path):
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard is not installed")
    settings = ("train.arms=[full-sup]", "train.epochs=2")
    tracked = run(make_config(tmp_path / "a", *settings, "track.tensorboard=true"), until="segmenter")
    plain = run(make_config(tmp_path / "b", *settings), until="segmenter")
    assert tracked.segmenters["full-sup", 0].digest == plain.segmenters["full-sup", 0].digest
    found = events(tmp_path / "a" / "small" / "track" / "tensorboard" / "full-sup" / "seed-0")
    assert [step for step, _ in found["loss_real"]] == [1, 2]
    assert not (tmp_path / "b" / "small" / "track").exists()
