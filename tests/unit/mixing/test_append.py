import pytest
import torch
from scipy import stats

from mcpmix.core.errors import ConfigError, DataError
from mcpmix.core.seeds import torch_rng
from mcpmix.mixing import Batch
from mcpmix.mixing.strategy import Append


def make_batch(count=4, synthetic=True):
    """Real images are 0, 1, 2, ... and their counterparts 100 more; masks have one pixel per sample."""
    values = torch.arange(float(count)).reshape(-1, 1, 1, 1).expand(-1, 3, 4, 4)
    masks = torch.eye(16)[:count].reshape(count, 1, 4, 4)
    return Batch(values, masks, values + 100 if synthetic else None, tuple(f"case-{i}" for i in range(count)))


def test_everything_is_appended_with_its_own_hard_mask():
    batch = make_batch()
    (term,) = Append().terms(batch, torch_rng("a"))
    assert term.images[:4].equal(batch.images)
    assert term.targets[:4].equal(batch.masks)
    assert sorted(term.images[4:, 0, 0, 0].tolist()) == [100, 101, 102, 103]
    for image, mask in zip(term.images, term.targets, strict=True):
        assert mask.equal(batch.masks[int(image[0, 0, 0]) % 100])
    assert (term.weight, term.name) == (1.0, "appended")


def test_the_objective_is_the_mean_over_all_images():
    strategy, batch = Append(), make_batch()
    terms = strategy.terms(batch, torch_rng("a"))
    assert float(strategy.combine([torch.tensor(0.7)], batch, terms)) == pytest.approx(0.7)


@pytest.mark.parametrize(("ratio", "count"), [(0.0, 0), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_the_ratio_counts_synthetic_per_real(ratio, count):
    (term,) = Append(ratio).terms(make_batch(8), torch_rng("a"))
    assert len(term.images) == len(term.targets) == 8 + count


def test_every_counterpart_is_drawn_as_often():
    strategy, batch, rng = Append(ratio=0.25), make_batch(8), torch_rng("often")
    counts = torch.zeros(8)
    for _ in range(800):
        drawn = strategy.terms(batch, rng)[0].images[8:, 0, 0, 0].long() - 100
        assert len(drawn.unique()) == 2
        counts[drawn] += 1
    assert stats.chisquare(counts.numpy()).pvalue > 0.01


def test_a_batch_of_one_gives_two_images():
    (term,) = Append().terms(make_batch(1), torch_rng("a"))
    assert term.images[:, 0, 0, 0].tolist() == [0, 100]


def test_draws_come_from_the_given_stream_only():
    strategy, batch = Append(0.5), make_batch(8)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = strategy.terms(batch, torch_rng("x"))[0].images
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, strategy.terms(batch, torch_rng("x"))[0].images)
    assert not torch.equal(first, strategy.terms(batch, torch_rng("y"))[0].images)


def test_pairs_are_needed():
    assert Append.needs_pairs
    with pytest.raises(DataError, match="mcpmix synthesize"):
        Append().terms(make_batch(synthetic=False), torch_rng("a"))


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_settings_that_do_not_fit(ratio):
    with pytest.raises(ConfigError, match=rf"ratio is {ratio}; expected a value in \[0, 1\]"):
        Append(ratio)
