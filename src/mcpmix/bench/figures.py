"""The figures of a grid, from what its cells have left on disk; nothing is trained for them."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mcpmix.bench.cells import Outcome, read_pace
from mcpmix.bench.gradients import Boundary, draw_bars
from mcpmix.bench.grid import FigureSpec
from mcpmix.bench.state import Cell
from mcpmix.config import Config
from mcpmix.core.errors import DependencyError
from mcpmix.core.stage_folder import Artifact
from mcpmix.core.training import JsonLines
from mcpmix.data.index import DatasetIndex, cache_of, load_arrays
from mcpmix.data.sample import read_image, read_mask
from mcpmix.generator.adapt import features_of
from mcpmix.generator.ledger import admitted_replicas, read_rows
from mcpmix.generator.pair_source import REAL, read_bank
from mcpmix.generator.workers import Request
from mcpmix.metrics.statistics import aggregate, bootstrap_intervals
from mcpmix.mixing.mcpmix import CosineMix, StepwiseMix, mix
from mcpmix.networks.features import load_features
from mcpmix.report.arms import Arm, arms_of
from mcpmix.report.charts import curves_of, mean_curve, new_figure, svg_of
from mcpmix.report.pictures import TRUTH_COLOUR, pick_cases
from mcpmix.report.tables import HEADLINE

_RLA = "mcpmix-rla"
_CASE_SIDE = 1.25  # inches
_POINTS = 9  # epochs of the figure `distribution`
_NEIGHBOURS = 15  # of UMAP; its own default, less where there are fewer images


@dataclass(frozen=True)
class Drawn:
    """A figure for the page, and what it says in words."""

    name: str
    title: str
    caption: str
    svg: str


def keep(figure: Figure, folder: Path, name: str, title: str, caption: str) -> Drawn:
    """Keep a figure as PNG in a folder, and as SVG for the page."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=150)
    return Drawn(name, title, caption, svg_of(figure, name))


def draw(spec: FigureSpec, found: Outcome, gradients: Mapping[str, Boundary] | None = None) -> Drawn | None:
    """The figure of a specification; None if no finished cell has what it shows.

    Args:
        gradients: what each arm does at boundary pixels, for the figure of this kind.
    """
    folder = found.plan.out / "figures"
    if spec.kind == "gradients":
        return draw_gradients(spec, gradients, folder) if gradients else None
    return _MAKERS[spec.kind](spec, found, folder) if found.selected(spec) else None


def drawn_arms(found: Outcome, cells: Sequence[Cell]) -> dict[str, Arm]:
    """How the methods of cells are drawn; the same in all figures of a grid."""
    grid = found.plan.grid
    arms = {arm.name: replace(arm, label=grid.label_of(arm.name)) for arm in arms_of(grid.arms)}
    return {method: arms[method] for method in dict.fromkeys(c.method for c in cells) if method in arms}


# --- distribution -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """Mixed images at one epoch."""

    epoch: int
    s: float  # share of the synthetic image, mean of the epoch
    distance: float  # between the centroids of mixed and real images in the features
    mixed: np.ndarray  # (N, 2) on the map


def require_umap() -> Any:  # noqa: ANN401 (it has no types)
    """The package of the map; a DependencyError names the extra that brings it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)  # about a part of it that nobody asks for
            import umap
    except ImportError as error:
        raise DependencyError(
            "The figure `distribution` needs the package umap-learn: pip install 'mcpmix[analysis]', or "
            "leave the figure out."
        ) from error
    return umap


def measure_distribution(
    config: Config, dataset: Artifact, pairs: Artifact, log: Sequence[Mapping[str, Any]]
) -> tuple[np.ndarray, list[Point]]:
    """Mix each training image with a counterpart at the shares of nine epochs of a log, and map all of them.

    The shares are those that training has logged, so no training is repeated. Images without a counterpart in
    the bank stay as they are, as in training.

    Returns:
        (N, 2) real images on the map, and the mixed ones at each epoch.
    """
    umap = require_umap()
    index = DatasetIndex.read(dataset)
    train = load_arrays(index.part("train"), config.data.size, cache_of(dataset.folder))
    numbers = [found or (REAL,) for found in admitted_replicas(read_rows(pairs.folder), train.ids)]
    bank = read_bank(pairs.folder, numbers, train)
    phi = load_features(config.rla.features)
    rows = {int(row["epoch"]): float(row["s"]) for row in log if "s" in row}
    order = sorted(rows)
    chosen = sorted({order[round(place)] for place in np.linspace(0, len(order) - 1, _POINTS)})
    real_images = torch.from_numpy(np.array(train.images)).float()
    with torch.inference_mode():
        real = features_of(phi, train.images)
        mixed = []
        for turn, epoch in enumerate(chosen):
            drawn = [Request(place, found[turn % len(found)]) for place, found in enumerate(numbers)]
            synthetic = torch.from_numpy(np.stack([bank[request] for request in drawn])).float()
            images = mix(real_images, synthetic, rows[epoch]).round().to(torch.uint8).numpy()
            mixed.append(features_of(phi, images))
    everything = np.concatenate([real, *mixed])
    neighbours = min(_NEIGHBOURS, len(everything) - 1)
    reducer = umap.UMAP(n_neighbors=neighbours, init="pca", random_state=0, n_jobs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few images make a rough map is plain to see
        flat = np.split(np.asarray(reducer.fit_transform(everything)), 1 + len(mixed))
    points = [
        Point(epoch, rows[epoch], float(np.linalg.norm(found.mean(0) - real.mean(0))), place)
        for epoch, found, place in zip(chosen, mixed, flat[1:], strict=True)
    ]
    return flat[0], points


def trend(epochs: Sequence[int], distances: Sequence[float]) -> float:
    """Rank correlation of distance and epoch: -1 for a distance that always falls; NaN for fewer than two."""
    from scipy import stats

    if len(epochs) < 2 or len(set(distances)) < 2:
        return float("nan")
    return float(stats.spearmanr(epochs, distances).statistic)


def draw_distribution(spec: FigureSpec, found: Outcome, folder: Path) -> Drawn | None:
    """Mixed and real training images at nine epochs of RLA on one map, and how far apart they are."""
    cell = next((cell for cell in found.selected(spec) if cell.method == _RLA), None)
    if cell is None:
        return None
    task = found.plan.cells[cell]
    inputs = found.made(cell).inputs[task.arm]
    if inputs.pairs is None:
        return None
    log = JsonLines(found.cells[cell].segmenter / "log.jsonl").rows()
    real, points = measure_distribution(task.config, inputs.dataset, inputs.pairs, log)
    distances = [point.distance for point in points]
    epochs = [point.epoch for point in points]
    everything = np.concatenate([real, *(point.mixed for point in points)])
    low, high = everything.min(0), everything.max(0)
    margin = 0.05 * (high - low)
    lines = -(-len(epochs) // 3)
    with new_figure(9.5, 1.9 * (lines + 1)) as figure:
        places = figure.add_gridspec(lines + 1, 3)
        for number, point in enumerate(points):
            panel = figure.add_subplot(places[number // 3, number % 3])
            panel.scatter(real[:, 0], real[:, 1], s=7, color="#8a93a0", linewidths=0, label="real")
            panel.scatter(
                point.mixed[:, 0], point.mixed[:, 1], s=7, color="#0a9e74", linewidths=0, label="mixed"
            )
            panel.set_title(f"epoch {point.epoch}, s = {point.s:.2f}", fontsize=8)
            if number == 0:
                panel.legend(fontsize=6, frameon=False)
            (left, bottom), (right, top) = low - margin, high + margin
            panel.set(xticks=[], yticks=[], xlim=(left, right), ylim=(bottom, top))
        below = figure.add_subplot(places[lines, :])
        below.plot(epochs, distances, "o-", color="#0a9e74")
        slope, start = np.polyfit(epochs, distances, 1) if len(epochs) > 1 else (0.0, distances[0])
        below.plot(epochs, [slope * e + start for e in epochs], color="#5f7480", linestyle="--", linewidth=1)
        below.set(xlabel="epoch", ylabel="distance of centroids")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        return keep(
            figure,
            folder,
            spec.stem,
            "Distribution of mixed and real images during training",
            f"Training images (grey) and their mixes at the share s of the epoch (green), {cell.name}. "
            f"Features of the frozen phi ({task.config.rla.features}), one UMAP fitted on all of them. "
            "Below: Euclidean distance of the centroids in the features themselves, from "
            f"{distances[0]:.3g} to {distances[-1]:.3g}; rank correlation with the epoch "
            f"{trend(epochs, distances):+.2f}; dashed: least squares. One counterpart for "
            "each image and no augmentation.",
        )


# --- gates --------------------------------------------------------------------------------------------------


def draw_gates(spec: FigureSpec, found: Outcome, folder: Path) -> Drawn | None:
    """Share and weight of RLA against their priors and both fixed schedules."""
    cells = [cell for cell in found.first_place(spec) if cell.method == _RLA]
    if not cells:
        return None
    logs = {(_RLA, cell.seed): JsonLines(found.cells[cell].segmenter / "log.jsonl").rows() for cell in cells}
    train = found.plan.cells[cells[0]].config.train
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
        return keep(
            figure,
            folder,
            spec.stem,
            "Share and weight that RLA learns, against priors and fixed schedules",
            f"{'/'.join(cells[0].place)}; thin lines: single seeds. The fixed schedules draw each sample's "
            "share uniformly below a ceiling; the line is the mean share. Their weight ρ is constant.",
        )


# --- cases --------------------------------------------------------------------------------------------------


def draw_cases(spec: FigureSpec, found: Outcome, folder: Path) -> Drawn | None:
    """Methods side by side: the best, median and worst image of ours, and where methods differ most."""
    place = found.first_place(spec)
    seed = place[0].seed
    arms = drawn_arms(found, place)
    cells = [cell for cell in place if cell.seed == seed and cell.method in arms]
    images = {image.id: image for image in found.tested(cells[0])}
    names = list(images)
    scores = np.stack([found.scores(cell, list(images.values()), [HEADLINE])[:, 0] for cell in cells])
    main = next((n for n, cell in enumerate(cells) if cell.method == _RLA), len(cells) - 1)
    chosen = pick_cases(dict(zip(names, scores[main].tolist(), strict=True)), 1)
    spread = np.nanmax(scores, 0) - np.nanmin(scores, 0)
    widest = [names[n] for n in np.argsort(-np.nan_to_num(spread), kind="stable")]
    taken = {name for _, name in chosen}
    chosen += [("largest difference", name) for name in widest if name not in taken][:1]
    with new_figure(_CASE_SIDE * (len(cells) + 1) + 0.3, (_CASE_SIDE + 0.28) * len(chosen) + 0.2) as figure:
        panels = figure.subplots(len(chosen), len(cells) + 1, squeeze=False)
        for row, (kind, name) in zip(panels, chosen, strict=True):
            labels = images[name].labels
            image, truth = (
                read_image(images[name].image),
                (read_mask(images[name].mask, labels), TRUTH_COLOUR),
            )
            shown = [("truth", [truth])]
            for cell, value in zip(cells, scores[:, names.index(name)], strict=True):
                path = found.cells[cell].evaluations["test"] / "predictions" / f"{name}.png"
                mask = read_mask(path, labels)
                title = f"{arms[cell.method].label}\n{'undefined' if np.isnan(value) else f'{value:.1f}'}"
                shown.append((title, [truth, (mask, arms[cell.method].colour)]))
            row[0].set_ylabel(kind, fontsize=7)
            for panel, (title, outlines) in zip(row, shown, strict=True):
                panel.imshow(image, interpolation="nearest")
                for mask, colour in outlines:
                    if mask.any() and not mask.all():
                        panel.contour(mask, levels=[0.5], colors=[colour], linewidths=1.0)
                panel.set(xticks=[], yticks=[])
                panel.grid(visible=False)
                panel.set_title(title, fontsize=6)
        return keep(
            figure,
            folder,
            spec.stem,
            "Methods side by side on the same test images",
            f"{'/'.join(cells[main].place)}, seed {seed}. White: truth; colours: predictions, with their "
            f"DSC. Chosen by rule: the best, the median and the worst image by the DSC of "
            f"{arms[cells[main].method].label}, and the one on which methods differ most.",
        )


# --- labels, cost, gradients --------------------------------------------------------------------------------


def draw_labels(spec: FigureSpec, found: Outcome, folder: Path) -> Drawn | None:
    """DSC over labelled images, a line for each method with several numbers of them; None without any."""
    cells = found.selected(spec)
    dataset, segmenter = cells[0].dataset, cells[0].segmenter
    cells = [cell for cell in cells if (cell.dataset, cell.segmenter) == (dataset, segmenter)]
    numbers: dict[str, set[str]] = {}
    for cell in cells:
        numbers.setdefault(cell.method, set()).add(cell.labels)
    cells = [cell for cell in cells if len(numbers[cell.method]) > 1]
    if not cells:
        return None
    with new_figure(5.6, 3.6) as figure:
        axes = figure.subplots()
        ticks: set[int] = set()
        for method, arm in drawn_arms(found, cells).items():
            points = []
            for labels in dict.fromkeys(cell.labels for cell in cells):
                mine = [cell for cell in cells if (cell.method, cell.labels) == (method, labels)]
                if mine:
                    count = int(found.made(mine[0]).dataset.manifest["counts"]["train"])
                    points.append((count, *_mean_dsc(found, mine)))
            points.sort()
            counts, means, lows, highs = zip(*points, strict=True)
            ticks |= set(counts)
            axes.plot(
                counts, means, color=arm.colour, marker=arm.marker, label=found.plan.grid.label_of(method)
            )
            axes.fill_between(counts, lows, highs, color=arm.colour, alpha=0.12, linewidth=0)
        axes.set_xscale("log")
        axes.set_xticks(sorted(ticks), labels=[str(tick) for tick in sorted(ticks)])
        axes.minorticks_off()
        axes.set(xlabel="labelled images", ylabel="DSC (%)")
        axes.legend(fontsize=7, frameon=False)
        return keep(
            figure,
            folder,
            spec.stem,
            "Label efficiency",
            f"{dataset}, {segmenter}: DSC on the same test images over the number of labelled "
            "training images; mean over seeds, with the 95 % bootstrap interval over groups.",
        )


def draw_cost(spec: FigureSpec, found: Outcome, folder: Path) -> Drawn | None:
    """Seconds of a training step against DSC; None if no step was timed."""
    cells = found.first_place(spec)
    points = []
    for method, arm in drawn_arms(found, cells).items():
        mine = [cell for cell in cells if cell.method == method]
        paces = [pace for cell in mine if (pace := read_pace(found.plan.home(cell))) is not None]
        if paces:
            points.append((arm, float(np.mean(paces)), *_mean_dsc(found, mine)))
    if not points:
        return None
    with new_figure(5.6, 3.6) as figure:
        axes = figure.subplots()
        for arm, pace, mean, low, high in points:
            axes.vlines(pace, low, high, color=arm.colour, linewidth=1, alpha=0.4)
            axes.plot(pace, mean, arm.marker, color=arm.colour, label=arm.label)
        axes.set(xlabel="seconds of a training step", ylabel="DSC (%)", xlim=(0, None))
        axes.legend(fontsize=6, frameon=False, ncols=2 if len(points) > 8 else 1, loc="center left",
                    bbox_to_anchor=(1, 0.5))  # fmt: skip
        return keep(
            figure,
            folder,
            spec.stem,
            "Cost against gain",
            f"{'/'.join(cells[0].place[:2])}: seconds of a training step, as measured in these trainings on "
            "whatever ran beside them, without making pairs; DSC on test images with its 95 % interval over "
            "groups.",
        )


def _mean_dsc(found: Outcome, cells: Sequence[Cell]) -> tuple[float, float, float]:
    """Mean over seeds and images, with its interval over groups; over images where there is one group."""
    images = found.tested(cells[0])
    groups = [image.group for image in images]
    values = np.mean([found.scores(cell, images, [HEADLINE]) for cell in cells], axis=0)
    low, high = bootstrap_intervals(values, groups=groups if len(set(groups)) > 1 else None)[0]
    mean = aggregate(values[:, 0].tolist()).mean
    return mean, mean if np.isnan(low) else float(low), mean if np.isnan(high) else float(high)


def draw_gradients(spec: FigureSpec, measured: Mapping[str, Boundary], folder: Path) -> Drawn:
    """What each arm does at boundary pixels."""
    with new_figure(9.5, 0.9 + 0.3 * len(measured)) as figure:
        draw_bars(figure, measured)
        return keep(
            figure,
            folder,
            spec.stem,
            "Gradients at boundary pixels",
            f"Trainings of {spec.epochs} epochs without augmentation: how often the gradient at a boundary "
            "pixel changes its sign between epochs, its noise relative to its signal, and the width of the "
            "predicted transition on validation images.",
        )


_MAKERS: dict[str, Callable[[FigureSpec, Outcome, Path], Drawn | None]] = {
    "distribution": draw_distribution,
    "gates": draw_gates,
    "cases": draw_cases,
    "labels": draw_labels,
    "cost": draw_cost,
}
