"""Every preset is a complete, valid configuration."""

from pathlib import Path

import pytest
import yaml

import mcpmix
from mcpmix.config import Config
from mcpmix.config_file import preset_names, resolve_config
from mcpmix.core.errors import ConfigError
from mcpmix.data import public_sets as catalog

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
    places = {"folder": FOLDER, "phantom": []}.get(source_of(path), ["data.root=some/place"])
    return resolve_config({"preset": path.stem}, places)


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
    sources = (config.depth.model, config.generator.base, config.rla.features, config.segmenter.weights)
    assert {*sources, config.synthesis.admission.judge.weights} == {"embedded"}
    assert config.runtime.device == "cpu"


def test_paper_has_the_published_values():
    config = load(next(path for path in FILES if path.stem == "paper"))

    assert config.data.size == 512
    assert (config.train.epochs, config.train.tail_epochs, config.train.batch_size) == (400, 300, 32)
    assert (config.train.learning_rate, config.train.weight_decay) == (1e-3, 1e-4)
    assert (config.rla.s_max, config.rla.rho_max) == (0.7, 0.5)
    assert (config.rla.lambda_s, config.rla.lambda_rho) == (1e-3, 1e-3)
    assert config.synthesis.source == "on-the-fly"


@pytest.mark.parametrize("name", ["kvasir-seg", "cvc-clinicdb", "piccolo", "isic-2017"])
def test_every_public_data_set_has_a_preset(name):
    assert name in preset_names()
    with pytest.raises(ConfigError, match=r"needs `root`.*data\.root=PATH"):
        resolve_config({"preset": name})
    config = resolve_config({"preset": name}, ["data.root=x"])
    assert config.data.source == config.name == name
    assert ("dermoscopic" if name.startswith("isic") else "endoscopic") in config.generator.prompt.text


def test_all_data_sets_of_the_catalogue_are_covered():
    assert set(catalog.entries()) <= set(preset_names())


def test_of_several_presets_the_last_wins():
    config = resolve_config({"preset": ["paper", "isic-2017"]}, ["data.root=x"])
    paper = load(next(path for path in FILES if path.stem == "paper"))
    assert (config.finetune, config.train, config.synthesis) == (paper.finetune, paper.train, paper.synthesis)
    assert (config.data.source, config.data.size, config.segmenter.variant) == ("isic-2017", 512, "b2")
    assert "dermoscopic" in config.generator.prompt.text
    with pytest.raises(ConfigError, match="unknown preset isic: did you mean"):
        resolve_config({"preset": ["paper", "isic"]}, ["data.root=x"])
    with pytest.raises(ConfigError, match="unknown preset"):
        resolve_config({"preset": []}, ["data.root=x"])
