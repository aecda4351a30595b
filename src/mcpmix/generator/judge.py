"""Stage 2a: the judge of synthetic images, segmenters trained on real training images only.

Each group of the training part is judged by a network that has not seen it.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.config import Config, JudgeConfig
from mcpmix.core.device import Runtime
from mcpmix.core.errors import DataError, ModelError
from mcpmix.core.files import read_json, write_json
from mcpmix.core.pixels import Pixels, as_images
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng, seed_everything, seed_for, torch_rng
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace
from mcpmix.core.training import fit, one_cycle
from mcpmix.data.augment import apply_colour, apply_geometry, draw_colour, draw_geometry, normalise
from mcpmix.data.index import Arrays, DatasetIndex, cache_of, load_arrays, training_digest
from mcpmix.networks.loss import segmentation_loss
from mcpmix.networks.segmenter import build_segmenter, load_network, save_segmenter
from mcpmix.networks.weight_files import digest_of_source, source_name

Floats = npt.NDArray[np.float64]

_FACTS = "judge.json"
_FLOOR = 0.1  # lowest threshold, however weak the judge is
_WEIGHT_DECAY = 1e-4
_WARMUP = 0.1  # share of the steps in which the learning rate rises
_ROTATE, _SCALE = 180.0, 0.3  # degrees and relative size: there is no upright in an endoscope
_GAIN = 0.4  # spread of the logarithm of a channel's gain at colour 1
_BATCH = 16  # images judged at once
_MOST_COMPARED = 200  # images whose masks are exchanged for the level of chance


def key(config: Config, dataset: Artifact) -> StageKey:
    """What the judge depends on."""
    judge = config.synthesis.admission.judge
    settings: dict[str, Any] = {"judge": judge.model_dump(mode="json"), "size": config.data.size}
    if judge.weights is not None:
        settings["weights"] = digest_of_source(judge.weights, "segmenter")
        settings["judge"]["weights"] = source_name(judge.weights)
    return StageKey("judge", settings, {"dataset": training_digest(dataset)}, config.seed)


def run(
    config: Config, dataset: Artifact, out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Train the judge on the training part, or resume its training."""
    if (finished := reuse(out, key(config, dataset), progress)) is not None:
        return finished
    records = DatasetIndex.read(dataset).part("train")
    with workspace(out, key(config, dataset)) as space:
        judge = train_judge(
            load_arrays(records, config.data.size, cache_of(dataset.folder)),
            [record.group for record in records],
            config.synthesis.admission.judge,
            seed=config.seed,
            device=runtime.device,
            folder=space.folder,
            progress=progress,
        )
        dice = judge.real_dice
        progress.say(
            f"judge: Dice {dice.mean():.2f} on real images of groups that it has not seen, "
            f"{judge.chance:.2f} against masks of others"
        )
        return space.finish(
            images=len(dice), folds=len(judge.networks), dice=float(dice.mean()), chance=judge.chance
        )


class Judge:
    """Trained networks, which fold each group belongs to, and what they reach on real images.

    Args:
        networks: one for each fold, trained without it; B,3,S,S normalised images to B,1,S,S logits.
        fold_of: fold of each training group.
        real: Dice in [0, 1] of each real training image, by id, from the network of its fold.
        chance: mean Dice of real images against the masks of other groups.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        fold_of: dict[str, int],
        real: dict[str, float],
        chance: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.networks = [network.to(device).eval() for network in networks]
        self.fold_of, self.real, self.chance = dict(fold_of), dict(real), chance
        self.device = torch.device(device)

    @property
    def real_dice(self) -> Floats:
        """Cross-validated Dice of the real training images, N values in [0, 1], in the order of their ids."""
        return np.array([self.real[name] for name in sorted(self.real)])

    def threshold(self, quantile: float) -> float:
        """The Dice below which a synthetic image is rejected.

        Never below `chance`: lesions are large and often in the middle, so that what the judge finds overlaps
        wrong masks as well, and an image has to fit its own mask better than that.

        Args:
            quantile: of the cross-validated Dice on real images: 0.25 asks of a synthetic image what three
                quarters of the real ones reach.
        """
        return max(_FLOOR, self.chance, float(np.quantile(self.real_dice, quantile)))

    @torch.inference_mode()
    def answers(self, images: Pixels, networks: Sequence[nn.Module] | None = None) -> npt.NDArray[np.float32]:
        """Lesion probabilities of B,S,S,3 uint8 images by each network, F,B,S,S; None: by all of them."""
        result = []
        for network in self.networks if networks is None else networks:
            parts = []
            for start in range(0, len(images), _BATCH):
                batch = as_images(images[start : start + _BATCH], self.device)
                parts.append(torch.sigmoid(network(normalise(batch)).float())[:, 0].cpu())
            result.append(torch.cat(parts).numpy())
        return np.stack(result)

    def probabilities(self, images: Pixels, groups: Sequence[str] | None = None) -> npt.NDArray[np.float32]:
        """Lesion probabilities, B,S,S float32.

        Args:
            images: B,S,S,3 uint8.
            groups: the training group under whose mask each image was made, to be judged by the network that
                did not see it. None, or a group that is not of the training part: the mean of all networks.
        """
        result = np.empty(images.shape[:3], np.float32)
        for places, found in self.in_parts(images, groups):
            result[places] = found
        return result

    def in_parts(
        self, images: Pixels, groups: Sequence[str] | None = None
    ) -> Iterator[tuple[list[int], npt.NDArray[np.float32]]]:
        """Some places in the images at a time, and the probabilities there; arguments as above."""
        folds = [self.fold_of.get(group) for group in groups] if groups else [None] * len(images)
        for fold in dict.fromkeys(folds):
            chosen = [place for place, other in enumerate(folds) if other == fold]
            networks = None if fold is None else [self.networks[fold]]
            for start in range(0, len(chosen), _BATCH):
                places = chosen[start : start + _BATCH]
                yield places, self.answers(images[places], networks).mean(axis=0)

    def dice(self, images: Pixels, masks: Pixels, groups: Sequence[str] | None = None) -> Floats:
        """Alignment: Dice of what the judge finds against B,S,S masks, B values; see `probabilities`."""
        return dice_of(self.probabilities(images, groups) > 0.5, masks)

    def scores(
        self, images: Pixels, masks: Pixels, groups: Sequence[str] | None = None
    ) -> tuple[Floats, Floats]:
        """Alignment and contrast of each image, from one pass; arguments as for `dice`.

        Returns:
            The Dice, B values in [0, 1]; and how much more probable a lesion is under the mask than outside
            of it, B values in [-1, 1], 0 where either is missing: it still tells a good image from a bad one
            where the judge is unsure and its mask empty.
        """
        found, inside = self.probabilities(images, groups), masks.astype(bool)
        contrast = [
            float(p[m].mean() - p[~m].mean()) if 0 < m.sum() < m.size else 0.0
            for p, m in zip(found, inside, strict=True)
        ]
        return dice_of(found > 0.5, masks), np.array(contrast)


def dice_of(found: npt.NDArray[np.bool_], masks: npt.NDArray[np.generic]) -> Floats:
    """Dice of each pair of B,H,W hard masks; 1 where both are empty."""
    wanted = masks.astype(bool)
    both = (found & wanted).sum(axis=(1, 2), dtype=np.float64)
    total = found.sum(axis=(1, 2), dtype=np.float64) + wanted.sum(axis=(1, 2))
    return np.where(total > 0, 2 * both / np.maximum(total, 1), 1.0)


def chance_dice(found: npt.NDArray[np.bool_], masks: npt.NDArray[np.generic], groups: Sequence[str]) -> float:
    """Mean Dice of B,H,W hard masks against the masks of other groups; 0 where there is one group only."""
    names = np.asarray(groups)
    one, two = (part.reshape(len(part), -1).astype(np.float32) for part in (found, masks.astype(bool)))
    total = one.sum(1)[:, None] + two.sum(1)[None]
    dice = np.where(total > 0, 2 * (one @ two.T) / np.maximum(total, 1), 1.0)
    apart = names[:, None] != names[None]
    return float(dice[apart].mean()) if apart.any() else 0.0


def deal_folds(groups: Sequence[str], folds: int, seed: int) -> dict[str, int]:
    """The fold of each group: groups in random order, the largest first, each to the smallest fold.

    Raises:
        DataError: there are fewer than two groups.
    """
    names, counts = np.unique(np.asarray(groups), return_counts=True)
    if len(names) < 2:
        raise DataError(
            "The judge of synthetic images needs training images of at least two groups, to be tested on one "
            f"that it has not seen; there is only {names.tolist()}. Add images, or set "
            "synthesis.admission.enabled=false."
        )
    order = numpy_rng("judge-folds", seed).permutation(len(names))
    order = order[np.argsort(-counts[order], kind="stable")]
    sizes, fold_of = np.zeros(min(folds, len(names)), int), {}
    for place in order:
        fold = int(sizes.argmin())
        fold_of[str(names[place])] = fold
        sizes[fold] += counts[place]
    return fold_of


def train_judge(
    arrays: Arrays,
    groups: Sequence[str],
    settings: JudgeConfig,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    folder: Path,
    progress: Progress = SILENT,
) -> Judge:
    """Train a judge on real images and masks, or resume one that was interrupted.

    Args:
        folder: gets checkpoints while it is trained, then the networks; one that holds a finished judge is
            read instead. It belongs to one data set and one `settings`: use another folder for others.

    Raises:
        DataError: there are fewer than two groups.
    """
    if (folder / _FACTS).exists():
        return load_judge(folder, device, trust=settings.network)
    fold_of = deal_folds(groups, settings.folds, seed)
    folds = np.array([fold_of[group] for group in groups])
    places = [folder / f"fold-{fold}" for fold in range(max(fold_of.values()) + 1)]
    checkpoints = [place / f"judge {place.name}.checkpoint" for place in places]
    networks = []
    for fold, checkpoint in enumerate(checkpoints):
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        seen = np.flatnonzero(folds != fold)
        networks.append(
            _train_fold(arrays, seen, settings, seed_for(seed, fold), device, checkpoint, progress)
        )
    judge = Judge(networks, fold_of, {}, device=device)
    compared = np.linspace(0, len(arrays) - 1, min(len(arrays), _MOST_COMPARED)).astype(int)
    dice = np.empty(len(arrays))
    answers: dict[int, npt.NDArray[np.bool_]] = {}
    for some, probabilities in judge.in_parts(arrays.images, groups):
        found = probabilities > 0.5
        dice[some] = dice_of(found, arrays.masks[some])
        answers |= {place: mask for place, mask in zip(some, found, strict=True) if place in compared}
    judge.chance = chance_dice(
        np.stack([answers[place] for place in compared]),
        arrays.masks[compared],
        [groups[place] for place in compared],
    )
    judge.real = {name: float(value) for name, value in zip(arrays.ids, dice, strict=True)}
    # Networks first, the facts last: a folder with facts is complete.
    description = {"name": settings.network, "variant": settings.variant, "size": arrays.images.shape[1]}
    if settings.options:
        description["options"] = settings.options
    for network, place in zip(judge.networks, places, strict=True):
        save_segmenter(network, place, description)
    facts = {"fold_of": judge.fold_of, "real": judge.real, "chance": judge.chance}
    write_json(folder / _FACTS, {**facts, "settings": settings.model_dump(mode="json")})
    for checkpoint in checkpoints:
        checkpoint.unlink(missing_ok=True)
    return judge


def load_judge(folder: Path, device: torch.device | str = "cpu", *, trust: bool | str = False) -> Judge:
    """Read a finished judge; `trust` is that of `load_network`.

    Raises:
        ModelError: it is missing or damaged.
    """
    try:
        facts = read_json(folder / _FACTS)
        fold_of, real, chance = facts["fold_of"], facts["real"], float(facts["chance"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder} has no judge ({_FACTS} expected): {error!r}") from error
    networks = [load_network(folder / f"fold-{fold}", trust)[0] for fold in range(max(fold_of.values()) + 1)]
    return Judge(networks, fold_of, real, chance, device)


def _train_fold(
    arrays: Arrays,
    seen: npt.NDArray[np.int64],
    settings: JudgeConfig,
    seed: int,
    device: torch.device | str,
    checkpoint: Path,
    progress: Progress,
) -> nn.Module:
    """A network trained on the images and masks at some places."""
    seed_everything("judge", seed)
    network = build_segmenter(settings.network, settings.variant, settings.weights, settings.options)
    network = network.to(device).train()
    optimiser = torch.optim.AdamW(network.parameters(), settings.learning_rate, weight_decay=_WEIGHT_DECAY)
    count = settings.batch_size

    def loss(index: int) -> Tensor:
        seed_everything("judge-step", seed, index)  # dropout inside the network
        rng = torch_rng("judge-batch", seed, index)
        drawn = seen[torch.randint(len(seen), (count,), generator=rng)]
        images, masks = (
            as_images(arrays.images[drawn]),
            torch.from_numpy(arrays.masks[drawn] > 0)[:, None].float(),
        )
        geometry = draw_geometry(count, rng, rotate=_ROTATE, scale=_SCALE, flip=True)
        pictures = vary_colour(apply_geometry(geometry, images), rng, settings.colour).to(device)
        targets = apply_geometry(geometry, masks, mode="nearest").to(device)
        logits = network(normalise(pictures))
        # Soft Dice as well, for lesions are small: under cross-entropy alone a network finds none of them for
        # the first hundred steps.
        found = torch.sigmoid(logits.float())
        both, total = (found * targets).sum((1, 2, 3)), (found + targets).sum((1, 2, 3))
        return segmentation_loss(logits, targets) + (1 - ((2 * both + 1) / (total + 1)).mean())

    fit(
        loss,
        network,
        optimiser,
        lambda optimiser, steps: one_cycle(optimiser, steps + 1, _WARMUP),
        settings.steps,
        checkpoint,
        largest_gradient=math.inf,
        save_every=max(1, settings.steps // 2),
        progress=progress,
    )
    return network.eval()


def vary_colour(images: Tensor, rng: torch.Generator, strength: float) -> Tensor:
    """Tone, then mixing of the channels and a gain for each: any hue, with every structure where it was.

    Synthetic images come in colours that the few real ones lack; a judge that never saw such a colour would
    fail on all of them.

    Images are B,3,H,W in [0, 1]. Strength 0 changes nothing; at 1 a mucosa may turn pale, blue or green.
    """
    count = len(images)
    toned = apply_colour(draw_colour(count, rng, strength), images)
    mixture = F.normalize(torch.rand(count, 3, 3, generator=rng), p=1.0, dim=2)
    share = strength * torch.rand(count, 1, 1, generator=rng)
    gain = torch.exp(_GAIN * strength * torch.randn(count, 3, 1, generator=rng))
    matrix = (gain * ((1 - share) * torch.eye(3) + share * mixture)).to(images)
    return torch.einsum("bij,bjhw->bihw", matrix, toned).clamp(0, 1)
