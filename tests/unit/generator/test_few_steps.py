"""Settings of few steps, and which keys they change."""

import pytest

from mcpmix.core.errors import ConfigError
from mcpmix.core.stage_folder import Artifact
from mcpmix.generator import finetune, synthesize
from mcpmix.generator.few_steps import sampling_settings
from mcpmix.networks.generator import SamplingSettings

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
