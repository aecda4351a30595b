"""The examples run, offline, and RLA in them learns; the page shows them as they are."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mcpmix

ROOT = Path(__file__).parents[2]
LOOPS = ("pytorch", "lightning", "huggingface", "monai")
PAGE = ROOT / "docs" / "use-elsewhere.md"


@pytest.fixture
def built(monkeypatch, tmp_path):
    """The RLA modules that an example builds; it runs in an empty folder."""
    made = []

    class Recorded(mcpmix.RLA):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            made.append(self)

    monkeypatch.setattr("mcpmix.mixing.rla.RLA", Recorded)
    monkeypatch.chdir(tmp_path)
    return made


# Lightning 2.6 calls what torch 2.15 is about to remove, and advises more workers than eight images need.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning")
@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers:UserWarning")
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_trains_before_and_after(loop, examples, built):
    before = examples(f"{loop}_plain").main(epochs=3)
    assert built == []
    after = examples(f"{loop}_rla").main(epochs=3)
    (rla,) = built
    assert before[-1] < before[0]
    assert after[-1] < after[0]
    assert int(rla.epoch) == 3
    assert int(rla.calls) == 6  # 8 images in batches of 4, three epochs
    assert not torch.equal(rla.psi.detach(), torch.zeros(()))
    assert not torch.equal(rla.zeta.detach(), torch.zeros(()))
    assert float(rla.discrepancy) > 0


def test_every_loop_is_tested_and_short():
    files = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "examples").glob("*.py")}
    assert {name for name in files if name.endswith("_rla.py")} == {f"{loop}_rla.py" for loop in LOOPS}
    assert {name for name in files if name.endswith("_plain.py")} == {f"{loop}_plain.py" for loop in LOOPS}
    assert max(files.values()) <= 60


def test_counterparts_of_the_examples_differ_and_share_the_mask(examples):
    Phantom = examples("pairs").Phantom  # noqa: N806
    image, counterpart, mask = Phantom(2, pairs=True, size=32)[1]
    assert image.shape == counterpart.shape == (3, 32, 32)
    assert (image - counterpart).abs().mean() > 0.01
    assert torch.equal(Phantom(2, size=32)[1][1], mask)


def test_the_lightning_callback_leaves_the_module_as_it_was(examples, built):
    plain = examples("lightning_plain")
    module, trainer = plain.Segmenter(), None
    callback = examples("lightning_callback").RLACallback(mcpmix.RLA(1, mu=0.0))
    callback.setup(trainer, module, "fit")
    assert module.training_step.__qualname__.startswith("RLACallback")
    callback.teardown(trainer, module, "fit")
    assert module.training_step.__func__ is plain.Segmenter.training_step


def test_the_page_shows_the_files_as_they_are(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("_use_elsewhere", ROOT / "benchmarks" / "_use_elsewhere.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = PAGE.read_text(encoding="utf-8")
    parts = script.parts()
    assert {f"{loop} diff" for loop in LOOPS} <= set(parts)
    for name, content in parts.items():
        assert f"<!-- {name} -->\n{content}\n<!-- /{name} -->" in text, (
            f"{name}: run python benchmarks/_use_elsewhere.py"
        )
    for loop in LOOPS:
        changed = [line for line in parts[f"{loop} diff"].splitlines() if line.startswith(("+", "-"))]
        assert 5 <= len(changed) <= 32


def test_the_onnx_example_needs_neither_torch_nor_this_package():
    code = (
        "import sys, onnx_predict\n"
        "print([name for name in ('torch', 'mcpmix', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "examples", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
