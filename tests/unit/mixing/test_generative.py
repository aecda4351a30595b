import pytest
import torch
from tests.helpers.batches import make_batch

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.registry import build_strategy
from mcpmix.mixing.strategy import Batch

NAMES = ("controlpolypnet", "gensrrfi", "satsynth")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("ratio", "count"), [(1.0, 4), (0.5, 2), (0.0, 0)])
def test_images_of_the_set_come_with_their_own_masks(name, ratio, count):
    plain, other = make_batch(4, 8, 8), torch.arange(4.0)[:, None, None, None]
    masks = (other > 1).float().expand(4, 1, 8, 8)  # an empty mask for the first two
    batch = Batch(plain.images, plain.masks, None, plain.ids, labelled_set=(other.expand(4, 3, 8, 8), masks))
    (term,) = build_strategy(name, ratio=ratio).terms(batch, torch_rng("set"))
    assert (term.name, term.weight) == ("appended", 1.0)
    assert len(term.images) == len(term.targets) == 4 + count
    assert torch.equal(term.images[:4], batch.images)
    assert torch.equal(term.targets[:4], batch.masks)
    chosen = term.images[4:, 0, 0, 0]
    assert len(chosen.unique()) == count
    assert torch.equal(term.targets[4:, 0, 0, 0], (chosen > 1).float())


def test_a_batch_without_a_set_says_who_makes_it():
    with pytest.raises(DataError, match="mcpmix run"):
        build_strategy("satsynth").terms(make_batch(), torch_rng("set"))


def test_a_ratio_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"ratio is 2\.0; expected a value in \[0, 1\]"):
        build_strategy("gensrrfi", ratio=2.0)
