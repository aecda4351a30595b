import pytest
import torch
from scipy import stats
from tests.helpers.batches import make_batch

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing.generative import Append
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


# --- append ---------------------------------------------------------------------------------------------


def numbered(count=4, synthetic=True):
    """Real images are 0, 1, 2, ... and their counterparts 100 more; masks have one pixel per sample."""
    values = torch.arange(float(count)).reshape(-1, 1, 1, 1).expand(-1, 3, 4, 4)
    masks = torch.eye(16)[:count].reshape(count, 1, 4, 4)
    return Batch(values, masks, values + 100 if synthetic else None, tuple(f"case-{i}" for i in range(count)))


def test_append_takes_every_counterpart_with_its_own_hard_mask():
    batch = numbered()
    (term,) = Append().terms(batch, torch_rng("a"))
    assert term.images[:4].equal(batch.images)
    assert term.targets[:4].equal(batch.masks)
    assert sorted(term.images[4:, 0, 0, 0].tolist()) == [100, 101, 102, 103]
    for image, mask in zip(term.images, term.targets, strict=True):
        assert mask.equal(batch.masks[int(image[0, 0, 0]) % 100])
    assert (term.weight, term.name) == (1.0, "appended")


def test_append_averages_over_all_images():
    strategy, batch = Append(), numbered()
    terms = strategy.terms(batch, torch_rng("a"))
    assert float(strategy.combine([torch.tensor(0.7)], batch, terms)) == pytest.approx(0.7)


@pytest.mark.parametrize(("ratio", "count"), [(0.0, 0), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_append_ratio_counts_synthetic_per_real(ratio, count):
    (term,) = Append(ratio).terms(numbered(8), torch_rng("a"))
    assert len(term.images) == len(term.targets) == 8 + count


def test_append_draws_every_counterpart_as_often():
    strategy, batch, rng = Append(ratio=0.25), numbered(8), torch_rng("often")
    counts = torch.zeros(8)
    for _ in range(800):
        drawn = strategy.terms(batch, rng)[0].images[8:, 0, 0, 0].long() - 100
        assert len(drawn.unique()) == 2
        counts[drawn] += 1
    assert stats.chisquare(counts.numpy()).pvalue > 0.01


def test_append_makes_two_images_of_one():
    (term,) = Append().terms(numbered(1), torch_rng("a"))
    assert term.images[:, 0, 0, 0].tolist() == [0, 100]


def test_append_needs_pairs():
    assert Append.needs_pairs
    with pytest.raises(DataError, match="mcpmix synthesize"):
        Append().terms(numbered(synthetic=False), torch_rng("a"))


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_append_settings_that_do_not_fit(ratio):
    with pytest.raises(ConfigError, match=rf"ratio is {ratio}; expected a value in \[0, 1\]"):
        Append(ratio)
