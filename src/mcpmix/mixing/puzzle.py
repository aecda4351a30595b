"""PuzzleMix's two problems on a grid of blocks: which image shows where, and what moves there.

Exact and deterministic: labels come from a minimum cut (SciPy's maximum flow), moves from rounds of bids.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

_CAPACITY = 2**29  # of all terminal edges together; SciPy's flow is int32
_NEVER = 2**30


@dataclass(frozen=True)
class Grid:
    """The energy of a labelling of B grids of n x n blocks.

    A label l in 0 ... K stands for the share f = l / K of the second image. The energy of a grid is

        sum over blocks of unary[l] + sum over neighbours of weight * (f - f')^2.

    Attributes:
        unary: Cost of each label, (B, n, n, K + 1).
        down: Weights between a block and the one below, 0 or more, (B, n - 1, n).
        right: Weights between a block and the one to its right, 0 or more, (B, n, n - 1).
    """

    unary: np.ndarray
    down: np.ndarray
    right: np.ndarray

    def energy(self, labels: np.ndarray) -> np.ndarray:
        """The energies of labels (B, n, n), int: (B,)."""
        share = labels / (self.unary.shape[-1] - 1)
        costs = np.take_along_axis(self.unary, labels[..., None], -1).sum((1, 2, 3))
        vertical = (self.down * np.diff(share, axis=1) ** 2).sum((1, 2))
        horizontal = (self.right * np.diff(share, axis=2) ** 2).sum((1, 2))
        total: np.ndarray = costs + vertical + horizontal
        return total


def optimal_labels(grid: Grid) -> np.ndarray:
    """The labels of least energy, (B, n, n), int; exact up to the rounding of costs to about 29 bits.

    Ishikawa's graph: each block is a chain of K nodes between source and sink, and where its chain is cut is
    its label. All grids are one graph; nothing but the terminals connects them.
    """
    levels = grid.unary.shape[-1] - 1
    blocks = np.arange(grid.unary[..., 0].size).reshape(grid.unary.shape[:-1])
    first, second, weight = _neighbours(grid, blocks)
    unary = _shifted(grid.unary.reshape(-1, levels + 1), first, second, weight)
    scale = _CAPACITY / max(float(unary.sum()), float(weight.max(initial=0.0)), 1e-30)

    nodes = 1 + np.arange(unary.shape[0] * levels).reshape(-1, levels)
    source, sink = 0, nodes.size + 1
    above = np.column_stack([np.full(len(nodes), source), nodes])
    below = np.column_stack([nodes, np.full(len(nodes), sink)])
    edges = [(above, below, np.rint(unary * scale))]
    if levels > 1:  # a chain is cut once
        edges.append((nodes[:, 1:], nodes[:, :-1], np.full((len(nodes), levels - 1), _NEVER)))
    between = np.rint(weight * scale / levels**2)[:, None, None]
    for a, b in ((first, second), (second, first)):
        ends = np.broadcast_arrays(nodes[a][:, :, None], nodes[b][:, None, :], between)
        edges.append((ends[0], ends[1], ends[2]))
    reached = _source_side(edges, source, sink)
    labels: np.ndarray = reached[nodes].sum(1).reshape(blocks.shape)
    return labels


def _neighbours(grid: Grid, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both ends and the weight of each pair of neighbouring blocks, flat."""
    first = np.concatenate([blocks[:, :-1].ravel(), blocks[:, :, :-1].ravel()])
    second = np.concatenate([blocks[:, 1:].ravel(), blocks[:, :, 1:].ravel()])
    return first, second, np.concatenate([grid.down.ravel(), grid.right.ravel()])


def _shifted(unary: np.ndarray, first: np.ndarray, second: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Costs for the graph: what its edges between chains count too much is taken off, and none is negative.

    With the same capacity between all levels, labels l and m cut K(l + m) - 2lm edges, which is
    (l - m)^2 and two terms of one block each.
    """
    levels = unary.shape[1] - 1
    label = np.arange(levels + 1)
    around = np.bincount(first, weight, len(unary)) + np.bincount(second, weight, len(unary))
    costs = unary - around[:, None] * (levels * label - label**2) / levels**2
    shifted: np.ndarray = costs - costs.min(1, keepdims=True)
    return shifted


def _source_side(
    edges: list[tuple[np.ndarray, np.ndarray, np.ndarray]], source: int, sink: int
) -> np.ndarray:
    """Which nodes are on the source's side of a minimum cut, bool."""
    rows, columns, values = (np.concatenate([part[i].ravel() for part in edges]) for i in range(3))
    graph = coo_matrix((values.astype(np.int32), (rows, columns)), shape=(sink + 1, sink + 1)).tocsr()
    residual = graph - maximum_flow(graph, source, sink).flow
    residual.eliminate_zeros()
    reached = np.zeros(sink + 1, dtype=bool)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    return reached


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
