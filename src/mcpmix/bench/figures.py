"""The figures of a grid, from what its cells have left on disk; nothing is trained for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mcpmix.bench.cells import Made, Scored, read_pace
from mcpmix.bench.distribution import Features, measure_distribution, trend
from mcpmix.bench.gradients import Boundary, draw_bars
from mcpmix.bench.grid import FigureSpec
from mcpmix.bench.plan import Plan
from mcpmix.bench.state import Cell
from mcpmix.bench.tables import scores_of, tested_images
from mcpmix.core.pixels import Pixels
from mcpmix.core.training import JsonLines
from mcpmix.data.index import DatasetIndex
from mcpmix.data.sample import read_image, read_mask
from mcpmix.metrics.statistics import aggregate, bootstrap_intervals
from mcpmix.mixing.mcpmix import CosineMix, StepwiseMix
from mcpmix.report.arms import Arm, arms_of, label_of
from mcpmix.report.charts import curves_of, mean_curve, new_figure, svg_of
from mcpmix.report.pictures import TRUTH_COLOUR, pick_cases
from mcpmix.report.tables import HEADLINE

_RLA = "mcpmix-rla"
_CASE_SIDE = 1.25  # inches


@dataclass(frozen=True)
class Drawn:
    """A figure for the page, and what it says in words."""

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Material:
    """What figures are drawn from: the plan, finished cells and groups."""

    plan: Plan
    cells: Mapping[Cell, Scored]
    groups: Mapping[str, Made]
    folder: Path  # gets a PNG of each

    def selected(self, spec: FigureSpec) -> list[Cell]:
        """The finished cells of a figure."""
        return [cell for cell in self.plan.selected(spec) if cell in self.cells]

    def first_place(self, spec: FigureSpec) -> list[Cell]:
        """The finished cells of a figure in the first place of the grid that has any."""
        cells = self.selected(spec)
        return [c for c in cells if c.dataset == cells[0].dataset and c.labels == cells[0].labels
                and c.segmenter == cells[0].segmenter]  # fmt: skip

    def dsc(self, cell: Cell) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
        """DSC of each test image, with the images' ids and groups."""
        made = self.groups[self.plan.cells[cell].group]
        images = tested_images(next(iter(made.inputs.values())).dataset, "test")
        return scores_of(self.cells[cell], images, "test", [HEADLINE])[:, 0], images.ids, images.groups

    def arms(self, cells: Sequence[Cell]) -> dict[str, Arm]:
        """How the methods of cells are drawn; the same in all figures of a grid."""
        drawn = {arm.name: arm for arm in arms_of(list(self.plan.grid.arms))}
        return {name: drawn[name] for name in dict.fromkeys(cell.method for cell in cells) if name in drawn}

    def label(self, method: str) -> str:
        """A method's name for readers."""
        return self.plan.grid.label_of(method) or label_of(method)

    def finish(self, figure: Figure, name: str) -> str:
        """Keep a figure as PNG and return it as SVG."""
        self.folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.folder / f"{name}.png", dpi=150)
        return svg_of(figure, name)


def draw(
    spec: FigureSpec, material: Material, gradients: Mapping[str, Boundary] | None = None
) -> Drawn | None:
    """The figure of a specification; None if no finished cell has what it shows."""
    if spec.kind == "gradients":
        return _gradients(spec, material, gradients) if gradients else None
    if not material.selected(spec):
        return None
    makers: dict[str, Callable[[FigureSpec, Material], Drawn | None]] = {
        "distribution": _distribution,
        "gates": _gates,
        "cases": _cases,
        "labels": _labels,
        "cost": _cost,
    }
    return makers[spec.kind](spec, material)


def _name(spec: FigureSpec) -> str:
    return str(spec.name or spec.kind)


# --- distribution -------------------------------------------------------------------------------------------


def _distribution(spec: FigureSpec, material: Material) -> Drawn | None:
    cell = next((cell for cell in material.selected(spec) if cell.method == _RLA), None)
    if cell is None:
        return None
    task = material.plan.cells[cell]
    inputs = material.groups[task.group].inputs[task.arm]
    if inputs.pairs is None:
        return None
    log = JsonLines(material.cells[cell].segmenter / "log.jsonl").rows()
    found = measure_distribution(task.config, inputs.dataset, inputs.pairs, log)
    distances = [point.distance for point in found.points]
    epochs = [point.epoch for point in found.points]
    lines = -(-len(epochs) // 3)
    with new_figure(9.5, 1.9 * (lines + 1)) as figure:
        places = figure.add_gridspec(lines + 1, 3)
        _draw_maps([figure.add_subplot(places[n // 3, n % 3]) for n in range(len(epochs))], found)
        below = figure.add_subplot(places[lines, :])
        below.plot(epochs, distances, "o-", color="#0a9e74")
        slope, start = np.polyfit(epochs, distances, 1) if len(epochs) > 1 else (0.0, distances[0])
        below.plot(epochs, [slope * e + start for e in epochs], color="#5f7480", linestyle="--", linewidth=1)
        below.set(xlabel="epoch", ylabel="distance of centroids")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        svg = material.finish(figure, _name(spec))
    rank = trend(epochs, distances)
    return Drawn(
        _name(spec),
        "Distribution of mixed and real images during training",
        f"Training images (grey) and their mixes at the share s of the epoch (green), {cell.name}. Features "
        f"of the frozen phi ({task.config.rla.features}), one UMAP fitted on all of them. Below: Euclidean "
        f"distance of the centroids in the features themselves, from {distances[0]:.3g} to "
        f"{distances[-1]:.3g}; rank correlation with the epoch {rank:+.2f}; dashed: least squares. "
        "One counterpart for each image and no augmentation.",
        svg,
    )


def _draw_maps(panels: Sequence[Any], found: Features) -> None:
    for panel, point in zip(panels, found.points, strict=True):
        panel.scatter(*found.real.T, s=7, color="#8a93a0", linewidths=0, label="real")
        panel.scatter(*point.mixed.T, s=7, color="#0a9e74", linewidths=0, label="mixed")
        panel.set_title(f"epoch {point.epoch}, s = {point.s:.2f}", fontsize=8)
    panels[0].legend(fontsize=6, frameon=False)
    low, high = found.bounds
    for panel in panels:
        panel.set(xticks=[], yticks=[], xlim=(low[0], high[0]), ylim=(low[1], high[1]))


# --- gates --------------------------------------------------------------------------------------------------


def _gates(spec: FigureSpec, material: Material) -> Drawn | None:
    cells = [cell for cell in material.first_place(spec) if cell.method == _RLA]
    if not cells:
        return None
    logs = {
        (_RLA, cell.seed): JsonLines(material.cells[cell].segmenter / "log.jsonl").rows() for cell in cells
    }
    train = material.plan.cells[cells[0]].config.train
    epochs = range(1, train.epochs + train.tail_epochs + 1)
    with new_figure(9.5, 3.2) as figure:
        share, weight = figure.subplots(1, 2)
        for axes, key, label in ((share, "s", "share s"), (weight, "rho", "weight ρ")):
            curves = curves_of(logs, _RLA, key)
            for curve in curves if len(curves) > 1 else ():
                axes.plot(list(curve), list(curve.values()), color="#0a9e74", linewidth=0.8, alpha=0.5)
            mean = mean_curve(curves)
            axes.plot(list(mean), list(mean.values()), color="#0a9e74", linewidth=1.9, label="RLA")
            prior = mean_curve(curves_of(logs, _RLA, f"{key}_prior"))
            axes.plot(list(prior), list(prior.values()), color="#5f7480", linestyle="--", label="its prior")
            axes.set(xlabel="epoch", ylabel=label, ylim=(0, None))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for strategy, colour, label in (
            (StepwiseMix(train.epochs), "#d9860a", "stepwise (mean share)"),
            (CosineMix(train.epochs), "#2b8bd0", "cosine (mean share)"),
        ):
            ceilings = []
            for epoch in epochs:
                strategy.set_epoch(epoch)
                ceilings.append(strategy.ceiling() / 2)  # shares are uniform below the ceiling
            share.plot(list(epochs), ceilings, color=colour, linewidth=1.3, label=label)
        share.legend(fontsize=7, frameon=False)
        svg = material.finish(figure, _name(spec))
    return Drawn(
        _name(spec),
        "Share and weight that RLA learns, against priors and fixed schedules",
        f"{'/'.join(cells[0].place)}; thin lines: single seeds. The fixed schedules draw each sample's "
        "share uniformly below a ceiling; the line is the mean share. Their weight ρ is constant.",
        svg,
    )


# --- cases --------------------------------------------------------------------------------------------------


def _cases(spec: FigureSpec, material: Material) -> Drawn | None:
    place = material.first_place(spec)
    seed = place[0].seed
    cells = [cell for cell in place if cell.seed == seed]
    arms = material.arms(cells)
    cells = [cell for cell in cells if cell.method in arms]
    scores, ids, _ = zip(*(material.dsc(cell) for cell in cells), strict=True)
    names = ids[0]
    main = next((n for n, cell in enumerate(cells) if cell.method == _RLA), len(cells) - 1)
    by_name = dict(zip(names, scores[main].tolist(), strict=True))
    chosen = pick_cases(by_name, 1)
    spread = np.nanmax(np.stack(scores), 0) - np.nanmin(np.stack(scores), 0)
    widest = [names[n] for n in np.argsort(-np.nan_to_num(spread), kind="stable")]
    taken = {name for _, name in chosen}
    chosen += [("largest difference", name) for name in widest if name not in taken][:1]
    made = material.groups[material.plan.cells[cells[0]].group]
    records = {r.id: r for r in DatasetIndex.read(next(iter(made.inputs.values())).dataset).part("test")}
    with new_figure(_CASE_SIDE * (len(cells) + 1) + 0.3, (_CASE_SIDE + 0.28) * len(chosen) + 0.2) as figure:
        grid = figure.subplots(len(chosen), len(cells) + 1, squeeze=False)
        for row, (kind, name) in zip(grid, chosen, strict=True):
            image, truth = read_image(records[name].image), read_mask(records[name].mask)
            _outlined(row[0], image, [(truth, TRUTH_COLOUR)], "truth")
            row[0].set_ylabel(kind, fontsize=7)
            for panel, cell, found in zip(row[1:], cells, scores, strict=True):
                evaluation = material.cells[cell].evaluations["test"]
                mask = read_mask(evaluation / "predictions" / f"{name}.png")
                value = found[names.index(name)]
                title = f"{material.label(cell.method)}\n{'undefined' if np.isnan(value) else f'{value:.1f}'}"
                _outlined(panel, image, [(truth, TRUTH_COLOUR), (mask, arms[cell.method].colour)], title)
        svg = material.finish(figure, _name(spec))
    return Drawn(
        _name(spec),
        "Methods side by side on the same test images",
        f"{'/'.join(cells[main].place)}, seed {seed}. White: truth; colours: predictions, with their DSC. "
        f"Chosen by rule: the best, the median and the worst image by the DSC of "
        f"{material.label(cells[main].method)}, and the one on which methods differ most.",
        svg,
    )


def _outlined(panel: Any, image: Pixels, masks: Sequence[tuple[Pixels, str]], title: str) -> None:  # noqa: ANN401
    panel.imshow(image, interpolation="nearest")
    for mask, colour in masks:
        if mask.any() and not mask.all():
            panel.contour(mask, levels=[0.5], colors=[colour], linewidths=1.0)
    panel.set(xticks=[], yticks=[])
    panel.grid(visible=False)
    panel.set_title(title, fontsize=6)


# --- labels, cost, gradients --------------------------------------------------------------------------------


def _labels(spec: FigureSpec, material: Material) -> Drawn | None:
    cells = [cell for cell in material.selected(spec) if cell.dataset == material.selected(spec)[0].dataset]
    cells = [cell for cell in cells if cell.segmenter == cells[0].segmenter]
    if len({cell.labels for cell in cells}) < 2:
        return None
    with new_figure(5.6, 3.6) as figure:
        axes = figure.subplots()
        ticks: set[int] = set()
        for method, arm in material.arms(cells).items():
            points = []
            for labels in dict.fromkeys(cell.labels for cell in cells):
                mine = [cell for cell in cells if (cell.method, cell.labels) == (method, labels)]
                if mine:
                    points.append((_labelled(material, mine[0]), *_mean_dsc(material, mine)))
            points.sort()
            counts, means, lows, highs = zip(*points, strict=True)
            ticks |= set(counts)
            axes.plot(counts, means, color=arm.colour, marker=arm.marker, label=material.label(method))
            axes.fill_between(counts, lows, highs, color=arm.colour, alpha=0.12, linewidth=0)
        axes.set_xscale("log")
        axes.set_xticks(sorted(ticks), labels=[str(tick) for tick in sorted(ticks)])
        axes.minorticks_off()
        axes.set(xlabel="labelled images", ylabel="DSC (%)")
        axes.legend(fontsize=7, frameon=False)
        svg = material.finish(figure, _name(spec))
    return Drawn(
        _name(spec),
        "Label efficiency",
        f"{cells[0].dataset}, {cells[0].segmenter}: DSC on the same test images over the number of labelled "
        "training images; mean over seeds, with the 95 % bootstrap interval over groups.",
        svg,
    )


def _labelled(material: Material, cell: Cell) -> int:
    made = material.groups[material.plan.cells[cell].group]
    return int(next(iter(made.inputs.values())).dataset.manifest["counts"]["train"])


def _mean_dsc(material: Material, cells: Sequence[Cell]) -> tuple[float, float, float]:
    """Mean over seeds and images, with its interval over groups; over images where there is one group."""
    found = [material.dsc(cell) for cell in cells]
    values = np.mean([scores for scores, _, _ in found], axis=0)[:, None]
    groups = found[0][2]
    low, high = bootstrap_intervals(values, groups=groups if len(set(groups)) > 1 else None)[0]
    mean = aggregate(values[:, 0].tolist()).mean
    return mean, mean if np.isnan(low) else float(low), mean if np.isnan(high) else float(high)


def _cost(spec: FigureSpec, material: Material) -> Drawn | None:
    cells = material.first_place(spec)
    points = {}
    for method, arm in material.arms(cells).items():
        mine = [cell for cell in cells if cell.method == method]
        paces = [pace for cell in mine if (pace := read_pace(material.plan.home(cell))) is not None]
        if paces:
            points[method] = (arm, float(np.mean(paces)), *_mean_dsc(material, mine))
    if not points:
        return None
    with new_figure(5.6, 3.6) as figure:
        axes = figure.subplots()
        for method, (arm, pace, mean, low, high) in points.items():
            axes.vlines(pace, low, high, color=arm.colour, linewidth=1, alpha=0.4)
            axes.plot(pace, mean, arm.marker, color=arm.colour, label=material.label(method))
        axes.set(xlabel="seconds of a training step", ylabel="DSC (%)", xlim=(0, None))
        axes.legend(fontsize=6, frameon=False, ncols=2 if len(points) > 8 else 1, loc="center left",
                    bbox_to_anchor=(1, 0.5))  # fmt: skip
        svg = material.finish(figure, _name(spec))
    return Drawn(
        _name(spec),
        "Cost against gain",
        f"{'/'.join(cells[0].place[:2])}: seconds of a training step, as measured in these trainings on "
        "whatever ran beside them, without making pairs; DSC on test images with its 95 % interval over "
        "groups.",
        svg,
    )


def _gradients(spec: FigureSpec, material: Material, found: Mapping[str, Boundary]) -> Drawn:
    with new_figure(9.5, 0.9 + 0.3 * len(found)) as figure:
        draw_bars(figure, found)
        svg = material.finish(figure, _name(spec))
    return Drawn(
        _name(spec),
        "Gradients at boundary pixels",
        f"Trainings of {spec.epochs} epochs without augmentation: how often the gradient at a boundary pixel "
        "changes its sign between epochs, its noise relative to its signal, and the width of the predicted "
        "transition on validation images.",
        svg,
    )
