import numpy as np
import pytest
from tests.helpers.light_makers import Light, picture

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ModelError
from mcpmix.core.seeds import seed_for
from mcpmix.data.index import Arrays
from mcpmix.generator.counterparts import (
    CounterpartMaker,
    Looks,
    make_filled,
)
from mcpmix.generator.workers import Request
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import Generator, control_from_base

SIZE = 64


def make_maker(models, appearance=(), looks=None):
    """Three samples, a random base and an untrained ControlNet."""
    rng = np.random.default_rng(0)
    arrays = Arrays(
        ids=("a", "b", "c"),
        images=rng.integers(0, 255, (3, SIZE, SIZE, 3), dtype=np.uint8),
        masks=rng.integers(0, 2, (3, SIZE, SIZE), dtype=np.uint8),
    )
    base = load_base(models / "pipeline")
    config = resolve_config(
        {
            "preset": "tiny",
            "seed": 5,
            "generator": {"prompt": {"template": "a polyp."}},
            "synthesis": {"steps": 1, "guidance": 1.0, "mask_guidance": 1.0, "appearance": appearance},
        }
    )
    generator = Generator(base, control_from_base(base, 2, (4, 4, 4, 4)))
    return CounterpartMaker(generator, arrays, rng.random((3, SIZE, SIZE), dtype=np.float32), config, looks)


def test_seeds_belong_to_run_sample_and_replica(random_models):
    maker = make_maker(random_models)
    assert maker.seed(Request(1, 2)) == seed_for(5, "b", 2)


def test_appearance_is_drawn_by_identity_and_varies(random_models):
    maker = make_maker(random_models, appearance=("pale", "red", "dim"))
    texts = [maker.text(Request(0, replica)) for replica in range(20)]
    assert texts == [maker.text(Request(0, replica)) for replica in range(20)]
    assert set(texts) == {"a polyp. pale", "a polyp. red", "a polyp. dim"}
    assert make_maker(random_models).text(Request(0, 0)) == "a polyp."


def test_an_image_made_again_alone_is_the_same_to_the_bit(random_models):
    maker = make_maker(random_models)
    batch = maker.make([Request(0, 0), Request(1, 4), Request(2, 1)])
    again = make_filled(maker, [Request(1, 4)], 3)
    assert np.array_equal(again[0], batch[1])
    elsewhere = maker.make([Request(1, 4), Request(0, 7), Request(0, 8)])  # another place, other neighbours
    assert np.array_equal(elsewhere[0], batch[1])


def test_at_another_batch_size_an_image_is_the_same_up_to_rounding(random_models):
    maker = make_maker(random_models)
    batch = maker.make([Request(0, 0), Request(1, 4), Request(2, 1)])
    alone = maker.make([Request(1, 4)])
    assert np.abs(alone[0].astype(int) - batch[1].astype(int)).max() <= 1


# --- looks of an adapted base ------------------------------------------------------------------------------


LOOKS = Looks(("look 0 0", "look 0 1", "look 0 2"), {"p": 0, "q": 1, "r": 2}, (0.75, 0.25, 0.0))


def test_looks_travel_with_their_base(tmp_path):
    assert Looks.read(tmp_path) is None
    LOOKS.write(tmp_path)
    assert Looks.read(tmp_path) == LOOKS
    assert (LOOKS.words("q"), LOOKS.words("stranger")) == ("look 0 1", None)


@pytest.mark.parametrize("content", ["", "[]", '{"texts": ["look"]}', '{"texts": 1, "look_of": {}}'])
def test_damaged_looks_are_named(tmp_path, content):
    (tmp_path / "looks.json").write_text(content)
    with pytest.raises(ModelError, match=r"looks\.json is damaged.*[Aa]dapt"):
        Looks.read(tmp_path)


def test_counterparts_are_drawn_in_the_looks_of_the_base_by_their_shares(random_models):
    maker = make_maker(random_models, appearance=("pale",), looks=LOOKS)
    texts = [maker.text(Request(0, replica)) for replica in range(400)]
    assert texts == [maker.text(Request(0, replica)) for replica in range(400)]
    # In place of the configured appearance, and never in a look that no training image has.
    assert set(texts) == {"a polyp. look 0 0", "a polyp. look 0 1"}
    assert np.mean([text.endswith("0 1") for text in texts]) == pytest.approx(0.25, abs=0.06)


def test_a_short_batch_is_made_at_full_size():
    images = make_filled(Light(), [Request(3, 1)], 5)
    assert len(images) == 1
    assert images[0, 0, 0, 0] == picture(3, 1)[0, 0, 0]
    assert images[0, -1, -1, 0] == 5
