"""Settings of few steps, and which keys they change."""

import numpy as np
import pytest
import torch
from tests.helpers.lora import query_of, write_lora

from mcpmix.core.errors import ConfigError
from mcpmix.core.stage_folder import Artifact
from mcpmix.data.index import Arrays
from mcpmix.data.leakage import SeenImage, write_seen
from mcpmix.generator import finetune, synthesize
from mcpmix.generator.counterparts import build_maker
from mcpmix.generator.few_steps import sampling_settings, seen_by_lora
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import SamplingSettings, control_from_base
from mcpmix.networks.weight_files import folder_digest

FEW = ("few_steps.steps=1", "few_steps.paths=5", "few_steps.distil_steps=3")
GUIDED = ("synthesis.steps=3", "synthesis.guidance=2", "synthesis.mask_guidance=1.5", "few_steps.steps=2")


def test_settings_of_few_steps(make_config, tmp_path):
    assert sampling_settings(make_config(tmp_path, *GUIDED)) == SamplingSettings(2, 1.0, 1.0, 1.0, 3)
    plain = make_config(tmp_path, *GUIDED, "few_steps.steps=0")
    assert sampling_settings(plain) == SamplingSettings(3, 2.0, 1.5, 1.0)
    lora = make_config(
        tmp_path, *GUIDED, "few_steps.lora=lora", "few_steps.steps=4", "synthesis.strength=0.5"
    )
    assert sampling_settings(lora) == SamplingSettings(4, 1.0, 1.0, 0.5, 50)
    with pytest.raises(ConfigError, match=r"few_steps\.steps: 4 is above synthesis\.steps, 3"):
        make_config(tmp_path, *GUIDED, "few_steps.steps=4")
    with pytest.raises(ConfigError, match=r"few_steps\.lora does nothing without few_steps\.steps"):
        make_config(tmp_path, "few_steps.lora=lora")


def test_keys_change_only_where_few_steps_are_asked_for(make_config, tmp_path):
    stages = [Artifact(tmp_path, {"digest": name}) for name in ("dataset", "depth")]

    def keys(*overrides):
        config = make_config(tmp_path, *overrides)
        return finetune.key(config, *stages).digest, synthesize.key(config, stages[0]).digest

    plain = keys()
    assert keys("few_steps.paths=7") == plain
    one, two, more, guided = (
        keys(*FEW, *overrides)
        for overrides in ((), ["few_steps.steps=2"], ["few_steps.paths=7"], ["synthesis.guidance=2"])
    )
    assert one[0] != plain[0]
    assert one[0] == two[0]  # the same copy draws in any number of steps
    assert one[1] != two[1]
    assert one[0] != more[0]
    assert one[0] != guided[0]  # guidance is part of what it learns
    assert keys("synthesis.guidance=2")[0] == plain[0]


def test_a_lora_draws_the_counterparts_and_is_part_of_their_key(random_models, make_config, tmp_path):
    pytest.importorskip("peft")
    base = load_base(random_models / "pipeline")
    control_from_base(base, 2, (4, 4, 4, 4)).save_pretrained(tmp_path / "generator" / "controlnet")
    added = write_lora(tmp_path / "lora", query_of(base.unet))
    config = make_config(tmp_path, "few_steps.steps=4", f"few_steps.lora={tmp_path / 'lora'}")
    arrays = Arrays(("a",), np.zeros((1, 32, 32, 3), np.uint8), np.zeros((1, 32, 32), np.uint8))
    depths = np.zeros((1, 32, 32), np.float32)
    maker = build_maker(config, tmp_path / "generator", arrays, depths, torch.device("cpu"))
    drawn = query_of(maker.generator.base.unet).weight
    torch.testing.assert_close(drawn, query_of(base.unet).weight + added)
    assert maker.settings.learnt_steps == 50

    generator = Artifact(tmp_path, {"digest": "generator"})
    before = synthesize.key(config, generator).digest
    write_lora(tmp_path / "lora", query_of(base.unet), alpha=2.0)
    folder_digest.cache_clear()
    assert synthesize.key(config, generator).digest != before
    # The generator itself knows nothing of it.
    stages = [Artifact(tmp_path, {"digest": name}) for name in ("dataset", "depth")]
    assert finetune.key(config, *stages).digest == finetune.key(make_config(tmp_path), *stages).digest


def test_what_a_lora_has_seen_is_read_from_its_folder(make_config, tmp_path):
    assert seen_by_lora(make_config(tmp_path)) == {}
    (tmp_path / "lora").mkdir()
    config = make_config(tmp_path, "few_steps.steps=4", f"few_steps.lora={tmp_path / 'lora'}")
    assert seen_by_lora(config) == {"the generator's LoRA": []}
    write_seen(tmp_path / "lora", [SeenImage("a", "0" * 64)])
    (seen,) = seen_by_lora(config)["the generator's LoRA"]
    assert seen.sha256 == "0" * 64
