"""PuzzleMix: an optimal mask on a grid of blocks decides which of two images shows, and blocks move there.

Exact and deterministic: labels come from a minimum cut (SciPy's maximum flow), moves from rounds of bids.
"""

from math import comb
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.errors import TrainingError
from mcpmix.core.seeds import numpy_stream
from mcpmix.data.augment import to_pixels
from mcpmix.mixing.partner_mixes import blend, require_partners
from mcpmix.mixing.strategy import Batch, FixedStrategy, InputGradient, Search, Term, require

_GRIDS = (2, 4, 8, 16)
_FLOOR = 1e-8  # of the prior's probabilities, as published
_CAPACITY = 2**29  # of all terminal edges together; SciPy's flow is int32
_NEVER = 2**30

Energy = tuple[np.ndarray, np.ndarray, np.ndarray]
"""What labelling B grids of n x n blocks costs: `unary, down, right`.

A label l in 0 ... K stands for the share f = l / K of the second image. `unary` is the cost of each label,
(B, n, n, K + 1). Two neighbours cost their weight, 0 or more, times (f - f')^2; weights are `down` between a
block and the one below, (B, n - 1, n), and `right` between a block and its right neighbour, (B, n, n - 1).
"""


@final
class PuzzleMix(FixedStrategy):
    """Show the salient blocks of two images: an optimal mask on a grid, and blocks that move where it shows.

    Each batch draws a grid of n x n blocks, n in {2, 4, 8, 16}, `lam ~ Beta(alpha, alpha)` and a permutation.
    Saliency is the size of the loss gradient at the image. The mask minimises lost saliency, broken
    neighbourhoods and the distance from the share `lam` exactly, by a minimum cut. Blocks of either image
    then move; masks move and mix exactly like the images. If n does not divide the size, the last row and
    column are repeated during mixing.

    Paper: alpha 1, three labels, beta 1.2, gamma 0.5, eta 0.2, strip 4, transport at 0.8. Two labels are the
    default here, so that targets stay hard; with three, half-transparent blocks have the target 0.5.
    `transport=False` keeps lesions in one piece.

    Cost: one more forward and backward pass to the image, and milliseconds per image for the cut.

    Args:
        alpha: Both parameters of the Beta distribution, 0 or more; 0 leaves the images as they are.
        n_labels: Number of mixing levels, 2 to 4.
        beta: Weight of smoothness, 0 or more.
        gamma: Share of image content in smoothness, in [0, 1).
        eta: Weight of the prior on the share, 0 or more.
        strip: Depth in pixels of the block borders that are compared.
        transport: Price of moving a block over the whole side, 0 or more; False: nothing moves.
        probability: How often a batch is mixed, in [0, 1].
    """

    needs_pairs: ClassVar[bool] = False
    search: ClassVar[Search] = {"alpha": (0.5, 1.0), "eta": (0.2, 1.0), "transport": (0.8, False)}

    def __init__(
        self,
        alpha: float = 1.0,
        n_labels: int = 2,
        beta: float = 1.2,
        gamma: float = 0.5,
        eta: float = 0.2,
        strip: int = 4,
        transport: float | Literal[False] = 0.8,
        probability: float = 1.0,
    ) -> None:
        super().__init__()
        is_price = transport is False or (transport is not True and transport >= 0)
        checks = {
            f"alpha is {alpha}; expected 0 or more": alpha >= 0,
            f"n_labels is {n_labels}; expected 2, 3 or 4": n_labels in (2, 3, 4),
            f"beta is {beta}; expected 0 or more": beta >= 0,
            f"gamma is {gamma}; expected a value in [0, 1)": 0 <= gamma < 1,
            f"eta is {eta}; expected 0 or more": eta >= 0,
            f"strip is {strip}; expected 1 pixel or more": strip >= 1,
            f"transport is {transport}; expected a price of 0 or more, or False": is_price,
            f"probability is {probability}; expected a value in [0, 1]": 0 <= probability <= 1,
        }
        require("PuzzleMix", checks)
        self.alpha, self.n_labels, self.beta, self.gamma, self.eta = alpha, n_labels, beta, gamma, eta
        self.strip, self.transport, self.probability = strip, transport, probability
        self._gradient: InputGradient | None = None

    def attach(self, gradient: InputGradient, network: nn.Module) -> None:  # noqa: ARG002
        """Take the gradient that saliency is made of."""
        self._gradient = gradient

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term of B mixed images and masks; the mean weight of the own image is noted as "own_share"."""
        require_partners(batch, "PuzzleMix")
        draws = numpy_stream(rng)
        images, masks, share = batch.images, batch.masks, 1.0
        if self.alpha > 0 and draws.random() < self.probability:
            side = draws.choice([n for n in _GRIDS if n <= min(images.shape[2:])] or [1])
            lam, partners = draws.beta(self.alpha, self.alpha), draws.permutation(len(images))
            images, masks, share = self.mix(batch, int(side), lam, partners)
        self.note(own_share=share)
        return [Term(images, masks, 1.0, "mixed")]

    def mix(self, batch: Batch, side: int, lam: float, partners: np.ndarray) -> tuple[Tensor, Tensor, float]:
        """Images and masks mixed on a grid of `side` x `side` blocks, and the own image's mean weight."""
        height, width = batch.images.shape[2:]
        filling = (0, -width % side, 0, -height % side)
        images, masks = (F.pad(values, filling, mode="replicate") for values in (batch.images, batch.masks))
        saliency = self._saliency(batch, side)
        labels = optimal_labels(self.energy(to_pixels(images), saliency, lam, partners))
        shown = 1.0 - labels / (self.n_labels - 1)
        own_plan, partner_plan = None, None
        if self.transport is not False:
            own_plan = transport_plan(shown > 0, saliency, self.transport)
            partner_plan = transport_plan(shown < 1, saliency[partners], self.transport)
        weight = torch.from_numpy(shown)[:, None].to(images)
        weight = F.interpolate(weight, images.shape[2:], mode="nearest")
        other = torch.from_numpy(partners).to(images.device)
        mixed = []
        for values in (images, masks):
            own, partner = _move(values, own_plan, side), _move(values[other], partner_plan, side)
            mixed.append(blend(own, partner, weight)[..., :height, :width])
        return mixed[0], mixed[1], float(shown.mean())

    def _saliency(self, batch: Batch, side: int) -> np.ndarray:
        """The size of the gradient in each block, (B, side, side); each sample sums to 1."""
        if self._gradient is None:
            raise TrainingError(
                "PuzzleMix needs the network's gradient at the images and was not given it. Call "
                "strategy.attach(gradient, network) once before the first step."
            )
        gradient = self._gradient(batch.images, batch.masks).float()
        size = gradient.square().mean(1, keepdim=True).sqrt()
        filled = F.pad(size, (0, -size.shape[3] % side, 0, -size.shape[2] % side))
        blocks = F.adaptive_avg_pool2d(filled, side)[:, 0].double().cpu().numpy()
        total = blocks.sum((1, 2), keepdims=True)
        return np.where(total > 0, blocks / np.where(total > 0, total, 1.0), 1.0 / side**2)

    def energy(self, pixels: Tensor, saliency: np.ndarray, lam: float, partners: np.ndarray) -> Energy:
        """The energy of the masks: labels count the share of the partner.

        Args:
            pixels: Images in [0, 1], (B, 3, H, W), H and W multiples of the grid's side.
            saliency: (B, side, side), each sample sums to 1.
            lam: Share of the own image that the prior prefers, in [0, 1].
            partners: Index of each sample's partner, (B,).
        """
        side, levels = saliency.shape[1], self.n_labels - 1
        down, right = (borders(part, side, self.strip, partners) for part in (pixels, pixels.mT))
        right = right.swapaxes(2, 3)
        scale = self.beta / (16 * side)
        # Hiding a block loses its saliency.
        costs = np.stack([saliency[partners], saliency])
        for pairs, axis in ((down, 2), (right, 3)):
            costs += scale * self.gamma * _one_block_terms(pairs, axis)
        label = np.arange(self.n_labels)
        share = label / levels
        likely = np.array([comb(levels, k) for k in label]) * lam ** (levels - label) * (1 - lam) ** label
        prior = -self.eta / side**2 * np.log(likely + _FLOOR)
        unary = costs[0][..., None] * (1 - share) + costs[1][..., None] * share + prior
        vertical, horizontal = (
            scale * (1 + self.gamma * (p[1] + p[2] - p[0] - p[3]) / 2) for p in (down, right)
        )
        return unary, vertical, horizontal


def optimal_labels(energy: Energy) -> np.ndarray:
    """The labels of least energy, (B, n, n), int; exact up to the rounding of costs to about 29 bits.

    Ishikawa's graph: each block is a chain of K nodes between source and sink, and where its chain is cut is
    its label. All grids are one graph; nothing but the terminals connects them.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    unary, down, right = energy
    levels = unary.shape[-1] - 1
    blocks = np.arange(unary[..., 0].size).reshape(unary.shape[:-1])
    first = np.concatenate([blocks[:, :-1].ravel(), blocks[:, :, :-1].ravel()])
    second = np.concatenate([blocks[:, 1:].ravel(), blocks[:, :, 1:].ravel()])
    weight = np.concatenate([down.ravel(), right.ravel()])

    # With the same capacity between all levels, labels l and m cut K(l + m) - 2lm edges, which is (l - m)^2
    # and two terms of one block each: the latter are taken off. No cost may be negative.
    label = np.arange(levels + 1)
    around = np.bincount(first, weight, blocks.size) + np.bincount(second, weight, blocks.size)
    costs = unary.reshape(-1, levels + 1) - around[:, None] * (levels * label - label**2) / levels**2
    costs = costs - costs.min(1, keepdims=True)
    scale = _CAPACITY / max(float(costs.sum()), float(weight.max(initial=0.0)), 1e-30)

    nodes = 1 + np.arange(len(costs) * levels).reshape(-1, levels)
    source, sink = 0, nodes.size + 1
    above = np.column_stack([np.full(len(nodes), source), nodes])
    below = np.column_stack([nodes, np.full(len(nodes), sink)])
    edges = [(above, below, np.rint(costs * scale))]
    if levels > 1:  # a chain is cut once
        edges.append((nodes[:, 1:], nodes[:, :-1], np.full((len(nodes), levels - 1), _NEVER)))
    between = np.rint(weight * scale / levels**2)[:, None, None]
    for a, b in ((first, second), (second, first)):
        ends = np.broadcast_arrays(nodes[a][:, :, None], nodes[b][:, None, :], between)
        edges.append((ends[0], ends[1], ends[2]))
    rows, columns, values = (np.concatenate([part[i].ravel() for part in edges]) for i in range(3))
    graph = coo_matrix((values.astype(np.int32), (rows, columns)), shape=(sink + 1, sink + 1)).tocsr()

    residual = graph - maximum_flow(graph, source, sink).flow
    residual.eliminate_zeros()
    on_source_side = np.zeros(sink + 1, dtype=bool)
    on_source_side[breadth_first_order(residual, source, return_predecessors=False)] = True
    labels: np.ndarray = on_source_side[nodes].sum(1).reshape(blocks.shape)
    return labels


def transport_plan(shown: np.ndarray, saliency: np.ndarray, cost: float) -> np.ndarray:
    """Where the blocks that an image shows come from, so that salient blocks are seen.

    Each of n rounds, every block bids for the place that suits it best: where the image is shown it gains
    its saliency, and it pays for the way. The best bid has the place; the others shun it from then on.

    Args:
        shown: Where the image shows, bool (B, n, n).
        saliency: Of its blocks, (B, n, n), each sample sums to 1.
        cost: Price of the squared distance, in units of the side.

    Returns:
        For each place the index of the block that comes there, (B, n * n); the place's own where none won.
    """
    count, side = shown.shape[:2]
    places = side * side
    axis = np.arange(side)
    squares = (axis[:, None] - axis) ** 2 / max(side - 1, 1) ** 2
    distance = (squares[:, None, :, None] + squares[None, :, None, :]).reshape(places, places)
    gain = saliency.reshape(count, places, 1) * shown.reshape(count, 1, places)
    bids = cost * distance - gain  # [sample, block, place]
    sample, block = np.arange(count)[:, None], np.arange(places)[None]
    plan = np.tile(block, (count, 1))
    for _ in range(side):
        wanted = bids.argmin(2)
        price = np.take_along_axis(bids, wanted[..., None], 2)[..., 0]
        order = np.argsort(-price, axis=1, kind="stable")  # the best bid is written last and stays
        plan = np.tile(block, (count, 1))
        plan[sample, np.take_along_axis(wanted, order, 1)] = order
        losers = np.take_along_axis(plan, wanted, 1) != block
        bids[sample, block, wanted] += losers
    return plan


def borders(pixels: Tensor, side: int, strip: int, partners: np.ndarray) -> np.ndarray:
    """How much images differ across the borders between a block and the one below.

    Args:
        pixels: (B, 3, H, W), H and W multiples of `side`.
        side: Blocks per side.
        strip: Depth in pixels that is averaged on each side of a border; the largest divisor of the block
            that is not above it is taken.
        partners: Index of each sample's partner, (B,).

    Returns:
        Mean absolute differences (4, B, side - 1, side): own above own, own above partner, partner above
        own, partner above partner.
    """
    blocks = [pixels.shape[axis] // side for axis in (2, 3)]
    depth, length = (max(d for d in range(1, min(block, strip) + 1) if block % d == 0) for block in blocks)
    pooled = F.avg_pool2d(pixels, (depth, length))
    rows = pooled.shape[2] // side
    upper, lower = pooled[:, :, rows - 1 : -1 : rows], pooled[:, :, rows::rows]
    other = torch.from_numpy(partners).to(pixels.device)
    pairs = [(a, b) for a in (upper, upper[other]) for b in (lower, lower[other])]
    across = torch.stack([(a - b).abs().mean(1) for a, b in pairs])
    means: np.ndarray = across.unflatten(3, (side, -1)).mean(4).double().cpu().numpy()
    return means


def _one_block_terms(pairs: np.ndarray, axis: int) -> np.ndarray:
    """What the four differences of a border ask of each of its two blocks alone, (2, B, side, side).

    A cost of two labels is one term of each block and one that only counts whether they differ.
    """
    own_own, own_partner, partner_own, partner_partner = pairs
    first = np.stack([own_own + own_partner, partner_own + partner_partner]) / 2
    second = np.stack([own_own + partner_own, own_partner + partner_partner]) / 2
    before, after = [(0, 0)] * 4, [(0, 0)] * 4
    before[axis], after[axis] = (0, 1), (1, 0)
    return np.pad(first, before) + np.pad(second, after)


def _move(values: Tensor, plan: np.ndarray | None, side: int) -> Tensor:
    """Blocks of (B, C, H, W) brought to their places by a plan (B, side * side)."""
    if plan is None:
        return values
    count, channels, height, width = values.shape
    cells = values.reshape(count, channels, side, height // side, side, width // side)
    cells = cells.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    sample = torch.arange(count, device=values.device)[:, None]
    moved = cells[sample, torch.from_numpy(plan).to(values.device)]
    moved = moved.reshape(count, side, side, *cells.shape[2:])
    return moved.permute(0, 3, 1, 4, 2, 5).reshape(values.shape)
