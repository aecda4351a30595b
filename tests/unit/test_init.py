import pytest
import yaml

from mcpmix.config_file import load_config, preset_names, resolve_config
from mcpmix.init import commented_yaml


@pytest.mark.parametrize("preset", preset_names())
def test_commented_configuration_says_what_the_preset_says(preset, tmp_path):
    data = {"source": "folder", "images": "/a b/images: 1", "masks": "/ü/masks", "groups": None}
    config = resolve_config({"preset": preset, "name": "x", "data": data})
    file = tmp_path / "mcpmix.yaml"
    file.write_text(commented_yaml(config, preset), encoding="utf-8")
    loaded = load_config(file)
    assert loaded.model_dump(exclude={"output"}) == config.model_dump(exclude={"output"})
    assert loaded.output == tmp_path / "runs"


def test_every_line_is_a_comment_a_setting_or_empty():
    data = {"source": "folder", "images": "i", "masks": "m"}
    text = commented_yaml(resolve_config({"preset": "paper", "data": data}), "paper")
    assert yaml.safe_load(text)["train"]["seeds"] == [0, 1, 2, 3]
    for line in text.splitlines():
        bare = line.strip()
        assert not bare or bare.startswith("# ") or ":" in bare
        assert len(line) <= 120
