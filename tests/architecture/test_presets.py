"""Every preset is a complete, valid configuration."""

from pathlib import Path

import pytest
import yaml

import mcpmix
from mcpmix.core.config import Config, preset_names, resolve_config

FILES = sorted((Path(mcpmix.__file__).parent / "presets").rglob("*.yaml"))
FOLDER = ["data.images=some/images", "data.masks=some/masks"]


def raw(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def source_of(path):
    """`data.source`, which a preset may have from the one it starts from."""
    tree = raw(path)
    inherited = source_of(path.with_name(f"{tree['preset']}.yaml")) if "preset" in tree else "folder"
    return tree.get("data", {}).get("source", inherited)


def load(path):
    return resolve_config({"preset": path.stem}, FOLDER if source_of(path) == "folder" else [])


def test_every_file_is_offered_by_name():
    assert {"tiny", "small", "paper"} <= {path.stem for path in FILES}
    assert sorted(path.stem for path in FILES) == preset_names()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_preset_loads_and_its_values_arrive(path):
    config = load(path)

    def check(given, arrived):
        for key, value in given.items():
            if isinstance(value, dict):
                check(value, arrived[key])
            else:
                assert arrived[key] == value, (
                    f"{key}: {value} in the file, {arrived[key]} in the configuration"
                )

    assert isinstance(config, Config)
    given = raw(path)
    given.pop("preset", None)
    check(given, config.model_dump(mode="json"))


def test_tiny_needs_no_network_and_no_gpu():
    config = load(next(path for path in FILES if path.stem == "tiny"))

    assert config.data.source == "phantom"
    assert {config.depth.model, config.generator.base, config.rla.features} == {"embedded"}
    assert config.segmenter.weights is None
    assert config.runtime.device == "cpu"


def test_paper_has_the_published_values():
    config = load(next(path for path in FILES if path.stem == "paper"))

    assert config.data.size == 512
    assert (config.train.epochs, config.train.tail_epochs, config.train.batch_size) == (400, 300, 32)
    assert (config.train.learning_rate, config.train.weight_decay) == (1e-3, 1e-4)
    assert (config.rla.s_max, config.rla.rho_max) == (0.7, 0.5)
    assert (config.rla.lambda_s, config.rla.lambda_rho) == (1e-3, 1e-3)
    assert config.synthesis.source == "on-the-fly"
