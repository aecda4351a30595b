"""What the generative baselines share: the set of synthetic images, each with the mask that is its label.

A baseline trains its networks and gives a function that draws images with masks from seeds. The rest is the
same for all: as many places as the bank of pairs has (replicas times training images), each tried up to
`synthesis.admission.tries` times; the judge of the run, where admission is enabled, in place of the detector
or eye that a paper filters with; a sealed row of the ledger for each image that was tried; the list of all
real images that the networks have seen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import DataError, StorageError, bullet_list
from mcpmix.core.files import file_digest
from mcpmix.core.pixels import Pixels, outline, write_png
from mcpmix.core.progress import Progress
from mcpmix.core.seeds import seed_everything, seed_for
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace
from mcpmix.data.index import Arrays, DatasetIndex, Record, cache_of, load_arrays, training_digest
from mcpmix.data.leakage import SeenImage, images_of, read_seen, require_parents, write_seen
from mcpmix.data.sample import pixel_digest, read_image, read_mask
from mcpmix.generator.adapt import sheet_of
from mcpmix.generator.admission import Verdict, open_admission, tally
from mcpmix.generator.counterparts import Looks, draw_text
from mcpmix.generator.ledger import LEDGER, Ledger, Row, damaged, read_verified, write_synthetic
from mcpmix.networks.features import features_digest
from mcpmix.networks.generator import SamplingSettings
from mcpmix.networks.weight_files import folder_digest, resolve

CANDIDATES = 10
"""Masks that are drawn for one image at most, until one is not degenerate."""
_TRAINING = "training"  # folder of checkpoints and weights; they go when the set is finished
_PERCENTILES = (1, 99)  # of the areas of real masks, between which those of synthetic ones must lie
_MOST_SHOWN = 32


@dataclass(frozen=True)
class Sources:
    """The artefacts that a baseline may read."""

    dataset: Artifact
    unlabelled: Artifact | None = None
    judge: Artifact | None = None
    generator: Artifact | None = None


@dataclass(frozen=True)
class Real:
    """The training part."""

    records: Sequence[Record]
    arrays: Arrays
    areas: tuple[float, float]  # shares of an image that the mask of a synthetic one may cover

    def degenerate(self, mask: Pixels) -> str:
        """Why a mask S,S cannot be a label; empty if it can."""
        share, (least, most) = float(mask.mean()), self.areas
        if not mask.any():
            return "mask: empty"
        if least <= share <= most:
            return ""
        return f"mask: covers {share:.1%} of the image; those of real images {least:.1%} to {most:.1%}"


@dataclass(frozen=True)
class Drawn:
    """B synthetic images with their masks."""

    images: Pixels  # B,S,S,3
    masks: Pixels  # B,S,S in {0, 1}
    origins: Sequence[Mapping[str, str]]  # where the mask and all else that is not drawn come from
    groups: Sequence[str]  # the training group that an image shows parts of; empty: of none


Draw = Callable[[Sequence[int], Sequence[str]], Drawn]
"""Images from seeds and prompts; an image depends on its own seed and prompt only."""

Train = Callable[[Config, Sources, Real, Path, Runtime, Progress], Draw]
"""Trains the networks of a baseline in a folder, or resumes their training."""


def set_key(method: str, config: Config, sources: Sources, learning: set[str]) -> StageKey:
    """What a set depends on: all of `sources`, and of the section finetune the fields named in `learning`."""
    synthesis, admission = config.synthesis, config.synthesis.admission
    drawn = {"replicas", "steps", "guidance", "mask_guidance", "batch_size", "appearance"}
    settings: dict[str, Any] = {
        "base": folder_digest(resolve(config.generator.base, "pipeline")),
        "prompt": config.generator.prompt.text,
        "size": config.data.size,
        "precision": config.runtime.precision,
        "steps": steps_of(config),
        "finetune": config.finetune.model_dump(mode="json", include=learning),
        "synthesis": synthesis.model_dump(mode="json", include=drawn),
        "tries": admission.tries,
    }
    inputs = {"dataset": training_digest(sources.dataset)}
    for name in ("unlabelled", "judge", "generator"):
        if (artifact := getattr(sources, name)) is not None:
            inputs[name] = artifact.digest
    if admission.enabled and sources.judge is not None:
        settings["admission"] = admission.model_dump(mode="json", exclude={"judge"})
        settings["features"] = features_digest(config.rla.features)
    return StageKey(method, settings, inputs, config.seed)


def steps_of(config: Config) -> int:
    """The steps that a baseline trains: as many as the run's own ControlNet."""
    return config.finetune.first_steps + config.finetune.steps


def batch_of(config: Config) -> int:
    """The images of a step: as many as in a step of the run's own ControlNet."""
    return config.finetune.batch_size * config.finetune.accumulation * config.finetune.processes


def sampling_of(config: Config, mask_guidance: float = 1.0) -> SamplingSettings:
    """How a baseline draws: as the run's own generator, but always from pure noise."""
    return SamplingSettings(config.synthesis.steps, config.synthesis.guidance, mask_guidance, strength=1.0)


def words_of(config: Config, records: Sequence[Record]) -> list[str | None]:
    """What the prompt of each training image gets, where the base knows looks; otherwise nothing."""
    looks = Looks.read(resolve(config.generator.base, "pipeline"))
    return [] if looks is None else [looks.words(record.image_sha256) for record in records]


def make_set(
    stage_key: StageKey,
    config: Config,
    sources: Sources,
    train: Train,
    out: Path,
    runtime: Runtime,
    progress: Progress,
    *,
    in_real: bool = False,
) -> Artifact:
    """Train a baseline and draw its set, or resume both.

    Args:
        in_real: whether lesions are drawn into real images. Those are meant to resemble a real image, so
            none is rejected as a copy; and they have its colours, so no prompt asks for others.

    Raises:
        DataError: no training mask has a lesion, or the networks have seen images outside the training part.
    """
    method, admission = stage_key.stage, config.synthesis.admission
    if (finished := reuse(out, stage_key, progress, f"synthetic/{method}")) is not None:
        return finished
    index, cache = DatasetIndex.read(sources.dataset), cache_of(sources.dataset.folder)
    records, held = index.part("train"), [record for record in index.records if record.split != "train"]
    seen = _seen(config, sources, records)
    require_parents(records, held, {method: seen})
    arrays = load_arrays(records, config.data.size, cache)
    real = Real(records, arrays, _areas(arrays.masks))
    with workspace(out, stage_key) as space:
        seed_everything(config.seed, method)
        training = space.folder / _TRAINING
        training.mkdir(exist_ok=True)
        draw = train(config, sources, real, training, runtime, progress)
        assess = None
        if admission.enabled and sources.judge is not None:
            groups = [record.group for record in records]
            unseen = load_arrays(index.part("validation"), config.data.size, cache)
            assess = open_admission(
                config, sources.judge.folder, arrays, groups, unseen, runtime.device, copies=not in_real
            ).assess_under
        ledger = Ledger(space.folder / LEDGER, stage_key.digest)
        looks = Looks.read(resolve(config.generator.base, "pipeline"))

        def prompt(seed: int) -> str:
            return config.generator.prompt.text if in_real else draw_text(config, looks, seed)

        _fill(method, config, real, draw, prompt, assess, space.folder, ledger, progress)
        write_seen(space.folder, seen)
        counts = _facts(ledger.rows, config.synthesis.replicas * len(records))
        for warning in counts["warnings"]:
            progress.say(f"synthetic/{method}: {warning}")
        if counts["images"]:
            write_png(space.folder / "sheet.png", _sheet(space.folder, ledger.rows))
        return space.finish(_TRAINING, **counts, ledger=ledger.head)


def _seen(config: Config, sources: Sources, records: Sequence[Record]) -> list[SeenImage]:
    """All real images that the networks of a baseline, and what they start from, have seen."""
    folders = [resolve(config.generator.base, "pipeline")]
    folders += [each.folder for each in (sources.unlabelled, sources.generator) if each is not None]
    listed = [image for folder in folders for image in read_seen(folder)]
    return list({image.sha256: image for image in (*images_of(records), *listed)}.values())


def _areas(masks: Pixels) -> tuple[float, float]:
    shares = masks.mean(axis=(1, 2))
    if not shares.any():
        raise DataError(
            "No mask of the training part has a lesion: a generative baseline has nothing to learn from. "
            "Check data.masks."
        )
    least, most = np.percentile(shares[shares > 0], _PERCENTILES)
    return float(least), float(most)


def _fill(
    method: str,
    config: Config,
    real: Real,
    draw: Draw,
    prompt: Callable[[int], str],
    assess: Callable[..., Sequence[Verdict]] | None,
    folder: Path,
    ledger: Ledger,
    progress: Progress,
) -> None:
    """Draw what is missing: first every place once, then those whose image was rejected once more."""
    left = list(range(config.synthesis.replicas * len(real.records)))
    size = config.synthesis.batch_size
    outcome = {(row["number"], row["try"]): bool(row["admitted"]) for row in ledger.rows}
    with progress.track(f"draw {method}", len(left), sum(outcome.values())) as advance:
        for attempt in range(config.synthesis.admission.tries):
            todo = [number for number in left if (number, attempt) not in outcome]
            for start in range(0, len(todo), size):
                chunk = todo[start : start + size]
                # Always a full batch: what is drawn must not depend on how many places happen to be left.
                numbers = [*chunk, *chunk[-1:] * (size - len(chunk))]
                seeds = [seed_for(method, config.seed, number, attempt) for number in numbers]
                prompts = [prompt(seed) for seed in seeds]
                drawn = draw(seeds, prompts)
                verdicts: Sequence[Verdict] = [({}, [])] * size
                if assess is not None:
                    verdicts = assess(drawn.images, drawn.masks, drawn.groups, [None] * size)
                for place, number in enumerate(chunk):
                    scores, problems = verdicts[place]
                    reasons = [text for text in (real.degenerate(drawn.masks[place]), *problems) if text]
                    content = {
                        "method": method,
                        "number": number,
                        "try": attempt,
                        "seed": seeds[place],
                        "prompt": prompts[place],
                        **drawn.origins[place],
                        **_write(folder, number, attempt, drawn, place, seeds[place], config.name, reasons),
                        "scores": scores,
                        "admitted": not reasons,
                        "reasons": reasons,
                    }
                    ledger.append(content)
                    outcome[number, attempt] = not reasons
                advance(sum(outcome[number, attempt] for number in chunk))
            left = [number for number in left if not outcome[number, attempt]]
        advance(len(left))  # those that were given up


def _write(
    folder: Path,
    number: int,
    attempt: int,
    drawn: Drawn,
    place: int,
    seed: int,
    run: str,
    reasons: Sequence[str],
) -> dict[str, str]:
    """Write an image and its mask; their files and digests."""
    mask = drawn.masks[place]
    image, label = f"images/{number:06d}.png", f"masks/{number:06d}.png"
    if reasons:
        image, label = (f"rejected/{number:06d}-{attempt}{end}.png" for end in ("", "-mask"))
    write_synthetic(folder / image, drawn.images[place], run=run, seed=seed)
    write_png(folder / label, mask * np.uint8(255))
    return {
        "mask_sha256": pixel_digest(mask),
        "image_sha256": file_digest(folder / image),
        "file": image,
        "mask_file": label,
    }


def _facts(rows: Sequence[Row], wanted: int) -> dict[str, Any]:
    """What the manifest says about a set."""
    admitted = [row for row in rows if row["admitted"]]
    warnings = []
    if len(admitted) < wanted:
        kinds = ", ".join(f"{kind} ({count})" for kind, count in tally(rows).items())
        warnings.append(
            f"{len(admitted)} images of {wanted} were admitted; rejected for {kinds}. Fine-tune longer "
            "(finetune.steps) or raise synthesis.admission.tries: with fewer images the comparison is unequal"
        )
    judged = [row["scores"]["alignment"] for row in rows if row["scores"]]
    kept = [row["scores"]["alignment"] for row in admitted if row["scores"]]
    return {
        "images": len(admitted),
        "wanted": wanted,
        "tries": len(rows),
        "rejected": tally(rows),
        "alignment": float(np.mean(kept)) if kept else None,
        "alignment_tried": float(np.mean(judged)) if judged else None,
        "warnings": warnings,
    }


def _sheet(folder: Path, rows: Sequence[Row]) -> Pixels:
    """The first images with the outlines of their masks."""
    shown = []
    for row in [row for row in rows if row["admitted"]][:_MOST_SHOWN]:
        image = read_image(folder / row["file"]).copy()
        image[outline(read_mask(folder / row["mask_file"]), outside=True)] = 255
        shown.append(image)
    return sheet_of(np.stack(shown))


def read_set(labelled: Artifact) -> Arrays:
    """The admitted images of a finished set with their masks.

    Raises:
        StorageError: the ledger, an image or a mask was changed or is missing.
    """
    folder = labelled.folder
    rows = read_verified(folder, labelled.digest, labelled.manifest["counts"]["ledger"])
    rows = [row for row in rows if row["admitted"]]
    bad = {row["file"] for row in damaged(folder, rows)}
    masks = []
    for row in rows:
        path = folder / row["mask_file"]
        mask = read_mask(path) if path.is_file() else None
        if mask is None or pixel_digest(mask) != row["mask_sha256"]:
            bad.add(row["mask_file"])
        else:
            masks.append(mask)
    if bad:
        headline = f"Files in {folder} are damaged or missing. Delete the folder to redo the set:"
        raise StorageError(bullet_list(headline, sorted(bad)))
    size = labelled.manifest["key"]["settings"]["size"]
    ids = tuple(f"{row['method']}-{row['number']}" for row in rows)
    images = [read_image(folder / row["file"]) for row in rows]
    if not rows:
        return Arrays((), np.empty((0, size, size, 3), np.uint8), np.empty((0, size, size), np.uint8))
    return Arrays(ids, np.stack(images), np.stack(masks))
