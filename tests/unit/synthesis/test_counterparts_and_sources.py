from functools import partial

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.core.seeding import seed_for
from mcpmix.data.arrays import Arrays
from mcpmix.models.diffusion import control_from_base, load_base
from mcpmix.models.generator import Generator, SamplingSettings
from mcpmix.synthesis.counterparts import CounterpartMaker, Request
from mcpmix.synthesis.sources import OnTheFly, PairBank

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
    return CounterpartMaker(
        Generator(base, control_from_base(base, 2, (4, 4, 4, 4))),
        arrays,
        rng.random((3, SIZE, SIZE), dtype=np.float32),
        use="both",
        prompt="a polyp.",
        appearance=appearance,
        settings=SamplingSettings(steps=1, guidance=1.0),
        run_seed=5,
    )


def test_seeds_belong_to_run_sample_and_replica(random_models):
    maker = make_maker(random_models)
    assert maker.seed(Request(1, 2)) == seed_for(5, "b", 2)


def test_appearance_is_drawn_by_identity_and_varies(random_models):
    maker = make_maker(random_models, appearance=("pale", "red", "dim"))
    texts = [maker.text(Request(0, replica)) for replica in range(20)]
    assert texts == [maker.text(Request(0, replica)) for replica in range(20)]
    assert set(texts) == {"a polyp. pale", "a polyp. red", "a polyp. dim"}
    assert make_maker(random_models).text(Request(0, 0)) == "a polyp."


@pytest.mark.slow
def test_on_the_fly_makes_the_images_a_bank_would_hold(random_models):
    expected = make_maker(random_models).make([Request(i, 1) for i in range(3)])
    source = OnTheFly(partial(make_maker, random_models), count=3, batch_size=3, epochs=2)
    try:
        first, second = source.epoch(1), source.epoch(2)
    finally:
        source.close()
    assert np.array_equal(second, expected)
    assert not np.array_equal(first, second)


@pytest.fixture
def bank_folder(tmp_path):
    for name, shade in (("a", 0), ("b", 100)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for replica in range(3):
            pixels = np.full((4, 4, 3), shade + replica, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{replica}.png")
    return tmp_path


def test_bank_draws_one_replica_of_the_right_parent_each_epoch(bank_folder):
    bank = PairBank(bank_folder, ("a", "b"), 3, seed=0)
    shades = np.array([bank.epoch(epoch)[:, 0, 0, 0] for epoch in range(1, 40)])
    assert set(shades[:, 0]) == {0, 1, 2}
    assert set(shades[:, 1]) == {100, 101, 102}
    again = PairBank(bank_folder, ("a", "b"), 3, seed=0)
    assert np.array_equal(again.epoch(7)[:, 0, 0, 0], shades[6])


def test_damaged_image_of_the_bank_is_named(bank_folder):
    (bank_folder / "images" / "b" / "1.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"b/1\.png"):
        PairBank(bank_folder, ("a", "b"), 3, seed=0)
