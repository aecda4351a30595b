import pytest
import torch
from tests.helpers.batches import make_batch
from torchvision.transforms.v2.functional import adjust_hue, rgb_to_grayscale

from mcpmix.core.errors import ConfigError
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import denormalise, normalise
from mcpmix.mixing.registry import build_strategy
from mcpmix.mixing.strategy import Batch

OFF = {"tone": 0.0, "hue": 0.0, "grey": 0.0, "blurred": 0.0, "crop": 0.0}


def changed(batch, seed=0, **settings):
    strategy = build_strategy("full-sup-strong", **{**OFF, **settings})
    strategy.set_epoch(1)
    (term,) = strategy.terms(batch, torch_rng("strong", seed))
    assert (term.weight, term.name) == (1.0, "real")
    return denormalise(term.images), term.targets


def test_without_any_change_the_images_stay():
    batch = make_batch()
    images, masks = changed(batch)
    torch.testing.assert_close(images, denormalise(batch.images))
    assert torch.equal(masks, batch.masks)


def test_the_mask_moves_with_the_window():
    plain = make_batch(8, 32, 32)
    rows = torch.arange(32) < 16
    masks = rows[None, None, :, None].float().expand(8, 1, 32, 32)
    batch = Batch(masks.repeat(1, 3, 1, 1), masks, None, plain.ids)  # the lesion is what is brighter
    images, targets = changed(batch, crop=0.5)
    bright = images.mean(dim=1, keepdim=True) > (images.amax() + images.amin()) / 2
    assert bright.float().sub(targets).abs().mean() < 0.02
    shares = targets.mean(dim=(1, 2, 3))
    assert len(shares.unique()) > 4
    assert set(targets.unique().tolist()) == {0.0, 1.0}


def test_an_empty_mask_stays_empty():
    plain = make_batch()
    batch = Batch(plain.images, torch.zeros_like(plain.masks), None, plain.ids)
    assert not build_and_run(batch).any()


def build_and_run(batch):
    strategy = build_strategy("full-sup-strong")
    strategy.set_epoch(1)
    (term,) = strategy.terms(batch, torch_rng("all"))
    assert term.images.isfinite().all()
    return term.targets


def test_grey_images_are_those_of_torchvision():
    batch = make_batch(6)
    images, _ = changed(batch, grey=1.0)
    wanted = rgb_to_grayscale(denormalise(batch.images), num_output_channels=3)
    torch.testing.assert_close(images, wanted, atol=2e-4, rtol=0)  # its weight of red is 0.2989


def test_the_hue_turns_up_to_a_quarter_of_the_circle():
    red = torch.tensor([0.9, 0.1, 0.1])[None, :, None, None].expand(64, 3, 8, 8)
    plain = make_batch(64, 8, 8)
    batch = Batch(normalise(red), plain.masks, None, plain.ids)
    images, _ = changed(batch, hue=0.25)
    ends = [adjust_hue(red[:1], turn)[0, :, 0, 0] for turn in (-0.25, 0.25)]
    # From red a quarter of the circle leads to the middle of green and yellow, or of blue and violet.
    assert images[:, 1].max() <= max(end[1] for end in ends) + 1e-4
    assert images[:, 2].max() <= max(end[2] for end in ends) + 1e-4
    assert (images[:, 1] - images[:, 2]).abs().amax() > 0.5
    untouched = (images - red).abs().amax(dim=(1, 2, 3)) < 1e-3
    assert 3 <= untouched.sum() <= 25  # one in five is not jittered


def test_blur_is_for_every_second_image():
    batch = make_batch(64, 16, 16)
    images, masks = changed(batch, blurred=0.5)
    softer = images.std(dim=(1, 2, 3)) < denormalise(batch.images).std(dim=(1, 2, 3)) - 1e-3
    assert 16 <= softer.sum() <= 48
    assert torch.equal(masks, batch.masks)


def test_settings_out_of_range_are_all_told():
    with pytest.raises(ConfigError) as caught:
        build_strategy("full-sup-strong", tone=2.0, hue=0.6, blur=(2.0, 1.0), crop=1.0)
    assert all(name in str(caught.value) for name in ("tone is 2.0", "hue is 0.6", "blur is", "crop is 1.0"))
