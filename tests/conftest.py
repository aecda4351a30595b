"""Shared by all tests: small models with random weights, in the folder layout of trained ones."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mcpmix.config import Config
from mcpmix.config_file import resolve_config

SIZE = 64  # a quarter of the pixels of the embedded models, which are convolutional


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """The machine may have few cores, and threads of several tests would fight for them."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _torch_as_it_was():
    """Stages set torch's global switches; no test shall meet those of another."""
    yield
    torch.set_deterministic_debug_mode("default")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def random_models(tmp_path_factory) -> Path:
    """A folder with `pipeline`, `depth` and `features` of the embedded architectures, untrained."""
    from mcpmix.networks.diffusion import DiffusionBase, save_base
    from mcpmix.networks.features import SmallFeatures, save_features
    from tools.pretrain import blueprints

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models")
    tokenizer = blueprints.build_tokenizer(["a clinical colon endoscopic image showing a polyp lesion"], 400)
    base = DiffusionBase(
        blueprints.build_unet(),
        blueprints.build_autoencoder(),
        blueprints.build_text_encoder(tokenizer),
        tokenizer,
        blueprints.build_scheduler(),
    )
    save_base(base, folder / "pipeline")
    depth, processor = blueprints.build_depth()
    depth.save_pretrained(folder / "depth")
    processor.save_pretrained(folder / "depth")
    save_features(SmallFeatures(), folder / "features")
    return folder


@pytest.fixture(scope="session")
def make_config(random_models) -> Callable[..., Config]:
    """A complete run on a few phantom frames, seconds long: `make_config(output, "key=value", ...)`."""

    def make(output: Path, *overrides: str) -> Config:
        return resolve_config({**SMALL_RUN, **_models(random_models), "output": str(output)}, overrides)

    return make


@pytest.fixture
def examples(monkeypatch) -> Callable[[str], ModuleType]:
    """Imports a script of examples/ by its name, as Python does that runs it from there."""
    folder = Path(__file__).parents[1] / "examples"
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if (folder / f"{name}.py").exists():
            del sys.modules[name]


SMALL_RUN = {
    "preset": "demo-fast",
    "name": "small",
    "data": {
        "size": SIZE,
        "phantom": {
            "train_patients": 2,
            "validation_patients": 1,
            "test_patients": 1,
            "frames_per_patient": 2,
            "test_frames_per_patient": 2,
            "known_frames_per_patient": 1,
        },
    },
    "finetune": {
        "start": None,
        "steps": 2,
        "batch_size": 2,
        "warmup_steps": 1,
        "save_every": 1,
        "augment": False,
        "colour": 0,
    },
    "synthesis": {"replicas": 2, "steps": 2, "batch_size": 2, "guidance": 1.0},
    "train": {"epochs": 2, "batch_size": 2, "validate_every": 1, "seeds": [0]},
    "runtime": {"threads": 1, "jobs": 1},
}


def _models(folder: Path) -> dict[str, dict[str, object]]:
    return {
        "depth": {"model": str(folder / "depth")},
        "generator": {"base": str(folder / "pipeline")},
        "rla": {"features": str(folder / "features"), "mmd_every": 1},
    }
