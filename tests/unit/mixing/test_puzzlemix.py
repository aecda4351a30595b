import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from tests.helpers.batches import make_batch

from mcpmix.core.errors import ConfigError, TrainingError
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.mixing.puzzlemix import PuzzleMix, borders, optimal_labels, transport_plan
from mcpmix.mixing.strategy import Batch


def random_grid(identity, *, count, rows, columns, labels):
    rng = numpy_rng("grid", identity, rows, columns, labels)
    return (
        rng.normal(size=(count, rows, columns, labels)),
        rng.exponential(0.7, size=(count, rows - 1, columns)),
        rng.exponential(0.7, size=(count, rows, columns - 1)),
    )


def energy_of(energy, labels):
    """What labels (B, n, n), int, cost: (B,)."""
    unary, down, right = energy
    share = labels / (unary.shape[-1] - 1)
    costs = np.take_along_axis(unary, labels[..., None], -1).sum((1, 2, 3))
    vertical = (down * np.diff(share, axis=1) ** 2).sum((1, 2))
    return costs + vertical + (right * np.diff(share, axis=2) ** 2).sum((1, 2))


def attached(gradient=lambda images, targets: images, **settings):
    strategy = PuzzleMix(**settings)
    strategy.attach(gradient, torch.nn.Identity())
    return strategy


# --- the cut -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "columns", "labels"),
    [(2, 2, 2), (3, 3, 2), (4, 3, 2), (2, 2, 3), (2, 3, 3), (2, 2, 4), (1, 5, 4)],
)
def test_no_labelling_is_better_than_the_cut(rows, columns, labels):
    grid = random_grid("brute", count=12, rows=rows, columns=columns, labels=labels)
    best = np.full(12, np.inf)
    for values in itertools.product(range(labels), repeat=rows * columns):
        candidate = np.tile(np.array(values).reshape(1, rows, columns), (12, 1, 1))
        best = np.minimum(best, energy_of(grid, candidate))
    found = optimal_labels(grid)
    assert found.shape == (12, rows, columns)
    np.testing.assert_allclose(energy_of(grid, found), best, atol=1e-5)


def test_energy_by_hand():
    unary = np.array([[[[1.0, 2.0, 3.0], [5.0, 7.0, 9.0]]]])
    grid = (unary, np.zeros((1, 0, 2)), np.array([[[4.0]]]))
    assert energy_of(grid, np.array([[[0, 2]]])) == [1 + 9 + 4 * 1]
    assert energy_of(grid, np.array([[[1, 2]]])) == [2 + 9 + 4 * 0.25]


def test_grids_of_a_batch_do_not_touch():
    both = random_grid("batch", count=2, rows=4, columns=4, labels=3)
    alone = [tuple(part[i : i + 1] for part in both) for i in range(2)]
    np.testing.assert_array_equal(optimal_labels(both), np.concatenate([optimal_labels(g) for g in alone]))


def test_strong_smoothness_gives_one_label():
    grid = random_grid("smooth", count=3, rows=4, columns=4, labels=3)
    stiff = (grid[0], 1e3 + grid[1], 1e3 + grid[2])
    labels = optimal_labels(stiff).reshape(3, -1)
    np.testing.assert_array_equal(labels, np.tile(grid[0].sum((1, 2)).argmin(-1)[:, None], (1, 16)))


def test_the_grid_is_the_energy_of_the_paper():
    """Lost saliency + beta' * (gamma * difference across each border + [labels differ]) + prior."""
    side, lam = 2, 0.3
    strategy = PuzzleMix(beta=3.0, gamma=0.4, eta=0.7, strip=4)
    pixels, partners = torch.rand(2, 3, 8, 8, generator=torch_rng("pixels")), np.array([1, 0])
    saliency = numpy_rng("saliency").dirichlet(np.ones(4), size=2).reshape(2, 2, 2)
    grid = strategy.energy(pixels, saliency, lam, partners)
    scale = 3.0 / (16 * side)

    def direct(labels):
        total = 0.0
        for (i, j), label in np.ndenumerate(labels):
            total += saliency[0, i, j] if label else saliency[1, i, j]
            total -= 0.7 / 4 * np.log((1 - lam if label else lam) + 1e-8)
        for k in range(2):
            for a, b in (((0, k), (1, k)), ((k, 0), (k, 1))):
                ends = []
                for i, j in (a, b):
                    block = pixels[int(labels[i, j])][:, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
                    ends.append(block.mean((1, 2)))
                total += scale * (0.4 * float((ends[0] - ends[1]).abs().mean()))
                total += scale * (labels[a] != labels[b])
        return total

    everything = [np.array(v).reshape(2, 2) for v in itertools.product((0, 1), repeat=4)]
    ours = np.array([energy_of(grid, np.stack([labels, labels]))[0] for labels in everything])
    theirs = np.array([direct(labels) for labels in everything])
    np.testing.assert_allclose(ours - ours[0], theirs - theirs[0], atol=1e-7)


def test_border_differences_by_hand():
    pixels = torch.zeros(2, 3, 4, 2)
    pixels[0, :, 2:] = 1.0  # own: dark above, bright below
    pixels[1] = 0.25
    values = borders(pixels, 2, 1, np.array([1, 0]))
    assert values.shape == (4, 2, 1, 2)
    np.testing.assert_allclose(values[:, 0, 0, 0], [1.0, 0.25, 0.75, 0.0])


# --- transport ---------------------------------------------------------------------------------------------


def test_a_salient_block_moves_to_where_its_image_shows():
    shown = np.array([[[True, False], [False, False]]])
    saliency = np.array([[[0.0, 0.0], [0.0, 1.0]]])
    assert transport_plan(shown, saliency, 0.1)[0, 0] == 3
    assert transport_plan(shown, saliency, 10.0).tolist() == [[0, 1, 2, 3]]  # too far to pay


def test_the_better_bid_has_the_place():
    shown = np.array([[[True, False], [False, False]]])
    saliency = np.array([[[0.0, 0.6], [0.4, 0.0]]])
    assert transport_plan(shown, saliency, 0.1)[0, 0] == 1
    assert transport_plan(shown, saliency.swapaxes(1, 2), 0.1)[0, 0] == 2


def test_each_shown_place_has_one_source_and_nothing_moves_where_all_is_shown():
    rng = numpy_rng("plans")
    saliency = rng.dirichlet(np.ones(64), size=5).reshape(5, 8, 8)
    assert (transport_plan(np.ones((5, 8, 8), bool), saliency, 0.8) == np.arange(64)).all()
    shown = rng.random((5, 8, 8)) > 0.5
    plan = transport_plan(shown, saliency, 0.8)
    before = (saliency * shown).sum((1, 2))
    after = (np.take_along_axis(saliency.reshape(5, 64), plan, 1) * shown.reshape(5, 64)).sum(1)
    assert (after >= before).all()
    assert (after > before).any()


# --- the strategy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 32), (70, 45), (5, 3)])
@pytest.mark.parametrize("n_labels", [2, 3])
def test_masks_go_where_their_pixels_go(size, n_labels):
    """The image carries its own mask in a channel: whatever happens to one must happen to the other."""
    plain = make_batch(4, *size)
    images = plain.images.clone()
    images[:, 1:2] = plain.masks
    batch = Batch(images, plain.masks, None, plain.ids)
    strategy, rng = attached(n_labels=n_labels), torch_rng("carried", size)
    for _ in range(8):
        (term,) = strategy.terms(batch, rng)
        assert term.images.shape == batch.images.shape
        torch.testing.assert_close(term.images[:, 1:2], term.targets)
        assert set(term.targets.unique().tolist()) <= ({0.0, 1.0} if n_labels == 2 else {0.0, 0.5, 1.0})


def test_without_smoothness_prior_and_transport_the_more_salient_block_shows():
    batch = make_batch(2, 16, 16)
    gradient = torch.rand(2, 3, 16, 16, generator=torch_rng("gradient"))
    strategy = attached(lambda *_: gradient, beta=0.0, eta=0.0, transport=False)
    partners, side = np.array([1, 0]), 4
    images, masks, share = strategy.mix(batch, side, 0.5, partners)
    size = gradient.square().mean(1).sqrt().reshape(2, side, 4, side, 4).mean((2, 4))
    size = size / size.sum((1, 2), keepdim=True)
    own = (size > size[[1, 0]]).repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None]
    assert torch.equal(images, torch.where(own, batch.images, batch.images[[1, 0]]))
    assert torch.equal(masks, torch.where(own, batch.masks, batch.masks[[1, 0]]))
    assert share == pytest.approx(float(own.float().mean()))


def test_the_prior_leads_to_the_drawn_share():
    batch = make_batch(2, 32, 32)
    strategy = attached(eta=50.0, transport=False)
    for lam, expected in ((0.99, 1.0), (0.01, 0.0)):
        images, _, share = strategy.mix(batch, 8, lam, np.array([1, 0]))
        assert share == expected
        source = batch.images if expected else batch.images[[1, 0]]
        assert torch.equal(images, source)


def test_grids_and_shares_are_drawn_as_published(monkeypatch):
    seen = []
    strategy, batch = attached(alpha=0.5), make_batch(3, 16, 16)

    def record(batch, side, lam, partners):
        seen.append((side, lam, tuple(partners)))
        return batch.images, batch.masks, 1.0

    monkeypatch.setattr(strategy, "mix", record)
    rng = torch_rng("drawn")
    for _ in range(1200):
        strategy.terms(batch, rng)
    sides, shares, partners = zip(*seen, strict=True)
    assert stats.chisquare(np.unique(sides, return_counts=True)[1]).pvalue > 0.01
    assert set(sides) == {2, 4, 8, 16}
    assert stats.kstest(shares, stats.beta(0.5, 0.5).cdf).pvalue > 0.01
    counts = np.unique(partners, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 0.01


@pytest.mark.parametrize("settings", [{"probability": 0.0}, {"alpha": 0.0}])
def test_degenerate_settings_are_the_identity(settings):
    batch = make_batch()
    (term,) = PuzzleMix(**settings).terms(batch, torch_rng("identity"))  # not even a gradient is needed
    assert torch.equal(term.images, batch.images)
    assert torch.equal(term.targets, batch.masks)


def test_one_generator_state_gives_one_result():
    batch, strategy = make_batch(), attached()
    runs = []
    for _ in range(2):
        rng = torch_rng("again")
        runs.append(torch.stack([strategy.terms(batch, rng)[0].images for _ in range(6)]))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0][0], runs[0][1])


def test_a_gradient_of_zero_counts_all_blocks_alike():
    (term,) = attached(lambda images, _: torch.zeros_like(images)).terms(make_batch(), torch_rng("zero"))
    assert term.images.isfinite().all()


def test_mistakes_say_what_to_do():
    with pytest.raises(TrainingError, match=r"strategy\.attach"):
        PuzzleMix().terms(make_batch(), torch_rng("x"))
    with pytest.raises(ConfigError, match=r"PuzzleMix mixes each image with another.*batch_size to 2"):
        attached().terms(make_batch(1), torch_rng("x"))
    with pytest.raises(ConfigError) as caught:
        PuzzleMix(-1.0, 5, -1.0, 1.0, -1.0, 0, -1.0, 2.0)
    for name in ("alpha", "n_labels", "beta", "gamma", "eta", "strip", "transport", "probability"):
        assert f"- {name} is" in str(caught.value)
