import numpy as np
import pytest

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.data.cache import Arrays
from mcpmix.generator.pair_source import PairFolders, open_pairs


def arrays():
    return Arrays(("a",), np.zeros((1, 4, 4, 3), np.uint8), np.zeros((1, 4, 4), np.uint8))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "needs the pairs: run `mcpmix synthesize` first"),
        (("synthesis.source=on-the-fly",), "need the generator and the depth maps: run `mcpmix finetune`"),
    ],
)
def test_what_is_missing_is_named_with_its_command(make_config, tmp_path, overrides, message):
    config = make_config(tmp_path, *overrides)
    with pytest.raises(DataError, match=message):
        open_pairs(config, arrays(), PairFolders(), 0, lambda _: np.array([0]))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("synthesis.source=on-the-fly", "synthesis.refresh=0.1"), "refresh is for source: bank"),
        (("synthesis.budget=true",), "budget is for pairs made in training"),
        (("synthesis.refresh=1.5",), "refresh"),
    ],
)
def test_settings_that_do_nothing_are_refused(make_config, tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        make_config(tmp_path, *overrides)


@pytest.mark.parametrize("preset", ["paper", "small", "tiny", "demo"])
def test_no_preset_saves_effort_or_refreshes(preset):
    from mcpmix.config_file import resolve_config

    given = {"preset": preset, "data": {"source": "phantom"}}
    synthesis = resolve_config(given).synthesis
    assert (synthesis.budget, synthesis.refresh) == (False, 0)
