import pytest
import torch
from scipy import stats
from tests.helpers.batches import make_batch, share_batch

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import denormalise, normalise
from mcpmix.mixing.diffusemix import DiffuseMix, half_share
from mcpmix.mixing.pictures import fractal_picture
from mcpmix.mixing.strategy import Batch


def test_halves_and_ramp_by_hand():
    assert half_share(6, 0.0).tolist() == [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(half_share(8, 0.5), torch.tensor([0, 0, 0.125, 0.375, 0.625, 0.875, 1, 1]))
    published = half_share(256, 20 / 256)
    assert published[:118].max() == 0
    assert published[138:].min() == 1
    assert float(published.sum()) == pytest.approx(128)
    assert float(half_share(5, 0.0).sum()) == 2  # the middle pixel stays original


def test_original_left_or_above_each_as_likely_and_the_mask_stays():
    strategy, rng, batch = DiffuseMix(fractal=0.0, ramp=0.0), torch_rng("halves"), share_batch(200, 8, 16)
    real, mixed = strategy.terms(batch, rng)
    assert torch.equal(real.images, batch.images)
    assert (real.name, mixed.name) == ("real", "mixed")
    assert real.weight + mixed.weight == 1
    assert torch.equal(mixed.targets, batch.masks)
    beside, above = torch.zeros(8, 16), torch.zeros(8, 16)
    beside[:, 8:], above[4:] = 1, 1
    is_beside, is_above = ((mixed.images == share).flatten(1).all(1) for share in (beside, above))
    assert bool((is_beside ^ is_above).all())
    assert stats.binomtest(int(is_beside.sum()), 200, 0.5).pvalue > 0.01


def test_the_fractal_is_blended_in_pixels():
    batch = share_batch(1, 32, 32)
    plain = DiffuseMix(fractal=0.0, ramp=0.0).terms(batch, torch_rng("same"))[1].images
    mixed = DiffuseMix(fractal=0.2, ramp=0.0, pictures=1, seed=3).terms(batch, torch_rng("same"))[1].images
    picture = fractal_picture(3, 0, 32, 32) / 255
    expected = 0.8 * denormalise(plain) + 0.2 * picture
    torch.testing.assert_close(denormalise(mixed), expected, atol=1e-5, rtol=0)


def test_a_fractal_alone_and_no_edit_are_the_extremes():
    batch = share_batch(2, 16, 16)
    same = Batch(batch.images, batch.masks, batch.images, batch.ids)
    assert torch.equal(DiffuseMix(fractal=0.0).terms(same, torch_rng("x"))[1].images, batch.images)
    alone = DiffuseMix(fractal=1.0, pictures=1).terms(batch, torch_rng("x"))[1].images
    torch.testing.assert_close(alone[0], normalise(fractal_picture(0, 0, 16, 16) / 255))


def test_a_batch_of_one_is_fine_and_one_state_gives_one_result():
    batch = share_batch(1, 8, 16)
    results = [DiffuseMix().terms(batch, torch_rng("again"))[1].images for _ in range(2)]
    assert torch.equal(*results)


def test_mistakes_say_what_to_do():
    with pytest.raises(DataError, match="mcpmix synthesize"):
        DiffuseMix().terms(make_batch(), torch_rng("x"))
    with pytest.raises(ConfigError) as caught:
        DiffuseMix(fractal=2.0, ramp=-1.0, pictures=0)
    for name in ("fractal", "ramp", "pictures"):
        assert f"- {name} is" in str(caught.value)
