import numpy as np

from mcpmix.config_file import resolve_config
from mcpmix.core.seeds import seed_for
from mcpmix.data.cache import Arrays
from mcpmix.generator.counterparts import CounterpartMaker
from mcpmix.generator.workers import Request, make_filled
from mcpmix.networks.controlnet import control_from_base
from mcpmix.networks.diffusion import load_base
from mcpmix.networks.generator import Generator

SIZE = 64


def make_maker(models, appearance=()):
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
    return CounterpartMaker(generator, arrays, rng.random((3, SIZE, SIZE), dtype=np.float32), config)


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
