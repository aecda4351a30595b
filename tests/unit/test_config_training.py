"""The sections of stage 3: what they refuse, and what they accept besides lists."""

import pytest

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ConfigError
from mcpmix.mixing.registry import build_strategy

FOLDER = {"data": {"images": "images", "masks": "masks"}}


@pytest.mark.parametrize("override", ["rla.s_max=0", "rla.bandwidths=[]"])
def test_a_setting_out_of_range_is_named(override):
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        resolve_config(FOLDER, [override])


def test_every_option_of_rla_can_be_configured():
    settings = ["rla.s_prior_max=0.3", "rla.rho_prior_max=0.2", "rla.root=true", "rla.bandwidths=[0.5, 2]"]
    rla = resolve_config(FOLDER, [*settings, "rla.mu=0"]).rla
    own = {"gate_learning_rate", "features", "fixed_rho"}
    built = build_strategy("mcpmix-rla", epochs=10, **rla.model_dump(exclude=own)).rla
    assert (built.s_prior_max, built.rho_prior_max, built.root) == (0.3, 0.2, True)
    assert built.bandwidths == (0.5, 2.0)


def test_one_arm_and_one_seed_need_no_list():
    config = resolve_config({"preset": "tiny"}, ["train.arms=full-sup, mcpmix", "train.seeds=3"])
    assert (config.train.arms, config.train.seeds) == (("full-sup", "mcpmix"), (3,))
