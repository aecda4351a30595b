"""Why mixing masks blurs boundaries: the gradients at boundary pixels under each strategy, epoch by epoch."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.ndimage import distance_transform_edt
from torch import Tensor

from mcpmix.bench.cells import Outcome
from mcpmix.bench.engines import Engine
from mcpmix.bench.tables import KINDS
from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import ConfigError
from mcpmix.core.files import read_json, write_json, write_text
from mcpmix.core.pixels import as_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace
from mcpmix.data.augment import normalise
from mcpmix.data.index import training_digest
from mcpmix.generator.judge import dice_of
from mcpmix.mixing.strategy import Batch, Term
from mcpmix.report.arms import arms_of, label_of
from mcpmix.segmenter.arms import Inputs, arm_settings
from mcpmix.segmenter.train import Trainer

_BAND = 2.0  # pixels on each side of the contour that count as boundary
_SURE = 0.9  # a prediction below this and above its complement is in transition
_SETTLED = 0.25  # share of the epochs that are left out: everything flips while nothing is learnt yet
_PANELS = {
    "flips": "sign flips between epochs (%)",
    "noise_to_signal": "gradient: noise / signal",
    "band": "width of the transition (px)",
}


@dataclass(frozen=True)
class Boundary:
    """What one strategy does at boundary pixels.

    Gradients are those of the objective at the logits, times the number of pixels of a batch: for one term
    of weight 1, prediction minus target. They are taken after the first quarter of the epochs.
    """

    flips: float  # percent of the steps from epoch to epoch, over pixels, in which the gradient changes sign
    mean: float  # over pixels, of the absolute value of the mean over epochs: what stays of the pull
    variance: float  # mean over pixels of the variance over epochs
    noise_to_signal: float  # root of the variance over the mean
    drift: float  # mean absolute difference between target and mask, in [0, 1]
    # Width of the transition on validation images in pixels: those with a prediction in (0.1, 0.9) for each
    # pixel of the predicted contour; NaN if nothing is predicted anywhere.
    band: float
    dsc: float  # on the validation images after the last epoch, percent


def still(config: Config, epochs: int) -> Config:
    """The configuration of a training in which a sample looks the same in every epoch."""
    if config.data.classes:
        raise ConfigError("The gradients are measured where one kind of lesion ends: leave data.classes out.")
    off = dict.fromkeys(("rotate", "scale", "colour", "crop", "blur"), 0.0) | {"flip": False}
    length = {"epochs": epochs, "tail_epochs": 0, "validate_every": epochs}
    return config.model_copy(update={"train": config.train.model_copy(update=off | length)})


def analyse(
    config: Config,
    arms: Sequence[str],
    inputs_of: Callable[[str], Inputs],
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> dict[str, Boundary]:
    """Train all arms with the first seed; write gradients.json, gradients.md and gradients.png.

    The configuration is that of a training without augmentation, see `still`.
    """
    found = {}
    with progress.track("analyse gradients", len(arms)) as advance:
        for arm in arms:
            found[arm] = _measure(config, inputs_of(arm), arm, out / "trainings" / arm, runtime)
            advance(1, f"{arm}: {found[arm].flips:.1f} % flips")
    record = {
        "epochs": config.train.epochs,
        "seed": config.train.seeds[0],
        "arms": {arm: asdict(row) for arm, row in found.items()},
    }
    write_json(out / "gradients.json", record)
    write_text(out / "gradients.md", to_markdown(found))

    figure = Figure(figsize=(10.5, 0.9 + 0.32 * len(arms)), layout="constrained")
    draw_bars(figure, found)
    figure.savefig(out / "gradients.png", dpi=110)
    return found


def draw_bars(figure: Figure, found: Mapping[str, Boundary]) -> None:
    """Bar charts side by side, one bar for each arm."""
    drawn = arms_of(list(found))
    axes = figure.subplots(1, len(_PANELS), sharey=True, squeeze=False)[0]
    for chart, (quantity, title) in zip(axes, _PANELS.items(), strict=True):
        values = [getattr(found[arm.name], quantity) for arm in drawn]
        chart.barh([arm.label for arm in drawn], values, color=[arm.colour for arm in drawn], height=0.7)
        chart.set_title(title, fontsize=10)
        chart.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()


def _measure(config: Config, inputs: Inputs, arm: str, folder: Path, runtime: Runtime) -> Boundary:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():  # a training is not resumed: half a record is useless
        old.unlink()
    trainer = Trainer(config, inputs, arm, config.train.seeds[0], folder, runtime)
    recorder = Recorder(dict(zip(trainer.train.ids, trainer.train.masks, strict=True)))
    trainer.observer = recorder
    try:
        trainer.fit(SILENT)
    finally:
        trainer.close()
    flips, mean, variance = recorder.summary(trainer.epochs)

    part, size, batches = trainer.validation, config.train.batch_size, []
    trainer.network.eval()
    with torch.no_grad():
        for start in range(0, len(part.ids), size):
            images = as_images(part.images[start : start + size], runtime.device)
            batches.append(trainer.network(normalise(images)).float().sigmoid()[:, 0].cpu().numpy())
    chances = np.concatenate(batches)
    widths = [width for chance in chances if not np.isnan(width := transition_width(chance))]
    return Boundary(
        flips=flips,
        mean=mean,
        variance=variance,
        noise_to_signal=float(np.sqrt(variance) / mean) if mean > 0 else float("nan"),
        drift=float(np.mean(recorder.drifts)),
        band=float(np.median(widths)) if widths else float("nan"),
        dsc=100 * float(dice_of(chances > 0.5, part.masks).mean()),
    )


class Recorder:
    """Keeps the gradients and targets at the boundary pixels of each sample, epoch by epoch.

    It is given the masks of the training samples by id, (H, W) in {0, 1}.
    """

    def __init__(self, masks: Mapping[str, np.ndarray]) -> None:
        self._places = {name: np.flatnonzero(near_contour(mask)) for name, mask in masks.items()}
        self.gradients: dict[str, list[np.ndarray]] = defaultdict(list)
        self.drifts: list[float] = []
        self._seen: set[str] = set()  # in this epoch

    def __call__(self, batch: Batch, terms: Sequence[Term], gradients: Sequence[Tensor]) -> None:
        """See one step; gradients of several terms of a sample add up."""
        pixels, count = batch.masks[0].numel(), len(batch.ids)
        total, drift = torch.zeros_like(batch.masks), torch.zeros_like(batch.masks)
        for term, gradient in zip(terms, gradients, strict=True):
            # Samples that a strategy appends come after those of the batch, and are others.
            total += gradient[:count] * (pixels * count)
            drift += torch.as_tensor(term.weight).detach() * (term.targets[:count] - batch.masks).abs()
        for row, name in enumerate(batch.ids):
            if name in self._seen:  # the last batch of an epoch is filled up with samples that it had
                continue
            self._seen.add(name)
            places = self._places[name]
            self.gradients[name].append(total[row].flatten().cpu().numpy()[places])
            if len(places):
                self.drifts.append(float(drift[row].flatten().cpu().numpy()[places].mean()))
        if len(self._seen) == len(self._places):  # all samples: the epoch is over
            self._seen.clear()

    def summary(self, epochs: int) -> tuple[float, float, float]:
        """Percent of flips, absolute mean and variance over the settled ones of the recorded epochs."""
        first = int(_SETTLED * epochs)
        traces = [np.stack(rows)[first:] for rows in self.gradients.values() if rows[0].size]
        flips = np.concatenate([sign_flips(trace) for trace in traces])
        means = np.concatenate([np.abs(trace.mean(0)) for trace in traces])
        variances = np.concatenate([trace.var(0, ddof=1) for trace in traces])
        return 100 * float(flips.mean()), float(means.mean()), float(variances.mean())


def near_contour(mask: np.ndarray, distance: float = _BAND) -> np.ndarray:
    """Pixels at most so far from the first of the other side, (H, W) bool; none where there is no contour."""
    inside = np.asarray(mask, dtype=bool)
    if inside.all() or not inside.any():
        return np.zeros_like(inside)
    away = np.where(inside, distance_transform_edt(inside), distance_transform_edt(~inside))
    return np.asarray(away <= distance)


def sign_flips(trace: np.ndarray) -> np.ndarray:
    """Share of steps in which each column of (epochs, pixels) changes sign; zeros keep the previous sign."""
    signs = np.sign(trace)
    for row in range(1, len(signs)):
        signs[row] = np.where(signs[row] == 0, signs[row - 1], signs[row])
    return np.asarray((signs[1:] * signs[:-1] < 0).mean(0))


def transition_width(chances: np.ndarray) -> float:
    """Pixels in transition for each pixel of the contour of probabilities (H, W); NaN without a contour."""
    contour = near_contour(chances > 0.5, 1.0) & (chances > 0.5)
    if not contour.any():
        return float("nan")
    unsure = (chances > 1 - _SURE) & (chances < _SURE)
    return float(unsure.sum() / contour.sum())


def to_markdown(found: Mapping[str, Boundary]) -> str:
    """A Markdown table, one row for each arm."""
    lines = [
        "| | sign flips (%) | mean pull | variance | noise / signal | target off the mask | transition (px) "
        "| DSC (%) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for arm, row in found.items():
        lines.append(
            f"| {label_of(arm)} | {row.flips:.1f} | {row.mean:.3f} | {row.variance:.4f} | "
            f"{row.noise_to_signal:.2f} | {row.drift:.3f} | {row.band:.2f} | {row.dsc:.1f} |"
        )
    return "\n".join(lines) + "\n"


# --- for the figures of a grid ------------------------------------------------------------------------------


def measure_all(found: Outcome, engine: Engine, progress: Progress) -> dict[str, dict[str, Boundary]]:
    """The analysis of each figure that wants one, by its name; those that are finished are reused."""
    plan = found.plan
    tasks: dict[str, Callable[..., Artifact]] = {}
    for spec in [figure for figure in plan.grid.figures if figure.kind == "gradients"]:
        arms = spec.arms or tuple(arm for arm in KINDS["mixing"].arms if arm in plan.grid.arms)
        cells = found.first_place(spec.model_copy(update={"arms": arms}))
        if cells:
            inputs = {plan.cells[cell].arm: found.made(cell).inputs[plan.cells[cell].arm] for cell in cells}
            config = still(found.made(cells[0]).place(plan.cells[cells[0]].config), spec.epochs)
            tasks[spec.stem] = partial(measure_gradients, config, inputs, plan.out / "analysis" / spec.stem)
    made = {}
    for name, outcome in engine.run(tasks, progress) if tasks else ():
        if isinstance(outcome, BaseException):
            found.failures[f"figure {name}"] = f"{type(outcome).__name__}: {outcome}"
            progress.say(f"figure {name} failed: {outcome}")
        else:
            rows = read_json(outcome / "gradients.json")["arms"]
            made[name] = {arm: Boundary(**row) for arm, row in rows.items()}
    return made


def measure_gradients(
    config: Config, inputs: Mapping[str, Inputs], out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Short trainings of all arms without augmentation, as a stage."""
    settings = {
        "size": config.data.size,
        "segmenter": config.segmenter.model_dump(mode="json"),
        "train": config.train.model_dump(mode="json", exclude={"arms", "strategies"}),
        "arms": {arm: arm_settings(config, arm) for arm in inputs},
    }
    digests = {
        f"{arm}/{name}": training_digest(item) if name == "dataset" else item.digest
        for arm, found in inputs.items()
        for name, item in vars(found).items()
        if isinstance(item, Artifact)
    }
    key = StageKey("gradients", settings, digests, config.seed)
    if (finished := reuse(out, key, progress)) is not None:
        return finished
    with workspace(out, key) as space:
        analyse(config, list(inputs), inputs.__getitem__, space.folder, runtime, progress)
        return space.finish(arms=len(inputs))
