"""Validates the generator while it learns: loss by timestep, alignment, a grid of images, on held-out masks.

A ControlNet ignores its condition for a long time and then follows it quite suddenly; the training loss does
not show when. The samples come from the validation part; noise and seeds stay the same.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mcpmix.config import Config, GeneratorValidationConfig
from mcpmix.core.device import Runtime
from mcpmix.core.files import read_json, write_json, written
from mcpmix.core.pixels import as_images, as_pixels, write_png
from mcpmix.core.seeds import seed_for, torch_rng
from mcpmix.core.training import JsonLines
from mcpmix.data.index import Arrays
from mcpmix.generator.conditions import as_levels, condition, swapped_conditions
from mcpmix.generator.counterparts import CONTROLNET
from mcpmix.generator.finetune_trainer import LOG, Networks, encode_all
from mcpmix.generator.judge import Judge
from mcpmix.networks.diffusion import Autoencoder, Batch, denoising_error, load_base
from mcpmix.networks.generator import Generator, SamplingSettings
from mcpmix.networks.weight_files import resolve

BEST, LAST = f"{CONTROLNET}-best", f"{CONTROLNET}-last"
_STEP = "step.json"
# Not those of the synthesis: changing them should not require a new training.
_SAMPLING = SamplingSettings(steps=12, guidance=2.0, mask_guidance=1.0, strength=1.0)
_BUCKETS = 5  # ranges of timesteps whose loss is logged separately


@dataclass(frozen=True)
class HeldOut:
    """Samples of the validation part."""

    ids: tuple[str, ...]
    images: Tensor  # N,3,S,S in [0, 1]
    latents: Tensor  # N,C,h,w
    masks: Tensor  # N,S,S, as `as_levels` gives them
    depths: Tensor  # N,S,S

    @classmethod
    def encode(cls, arrays: Arrays, depths: np.ndarray, vae: Autoencoder, labels: int = 2) -> Self:
        """Encode images; depths are N,S,S in [0, 1], labels as for `as_levels`."""
        images, masks = as_images(arrays.images), as_levels(np.array(arrays.masks), labels)
        return cls(arrays.ids, images, encode_all(vae, images), masks, torch.from_numpy(depths).float())

    @property
    def other_masks(self) -> Tensor:
        """N,S,S: for each sample the mask of another one; of the only one, its own upside down."""
        count = len(self.ids)
        return self.masks.roll(count // 2, 0) if count > 1 else self.masks.flip(1)


class Validator:
    """Validates after a checkpoint, keeps the log and the best weights.

    It validates the averaged networks, since they are the result.

    Args:
        text: 1,L,C embedding of the full prompt.
        folder: of the log, the grids and the best weights.
        judge: gives alignment scores; None: `swap_alignment` does.
    """

    def __init__(
        self,
        networks: Networks,
        held_out: HeldOut,
        text: Tensor,
        config: Config,
        folder: Path,
        runtime: Runtime,
        judge: Judge | None = None,
    ) -> None:
        self.networks, self.held_out, self.text, self.judge = networks, held_out, text, judge
        self.config, self.settings = config, config.finetune.validation
        self.steps = config.finetune.first_steps + config.finetune.steps
        self.folder, self.runtime = folder, runtime
        self.log = JsonLines(folder / LOG)

    def __call__(self, step: int) -> None:
        """Validate the state after `step` steps if it is due, and export it if it is the best so far.

        Idempotent: after a kill it is called again for the state from which the run resumes.
        """
        if step % self.settings.every and step != self.steps:
            return
        if step not in [row["step"] for row in validations(self.log)]:
            self.log.append(step=step, validation=self._look(step))
        best = best_of(validations(self.log), self.settings)
        if best["step"] == step and exported_step(self.folder / BEST) != step:
            shutil.rmtree(self.folder / BEST, ignore_errors=True)
            with written(self.folder / BEST) as place:
                self.networks.save(place)
                write_json(place / _STEP, {"step": step})

    def save_result(self) -> dict[str, Any]:
        """Save the weights to be used where the synthesis reads them; returns facts for the manifest."""
        if self.settings.use == "last":
            self.networks.save(self.folder / CONTROLNET)
        else:
            self.networks.save(self.folder / LAST)
            if (self.folder / BEST).exists():  # else it was put in place before a kill
                shutil.rmtree(self.folder / CONTROLNET, ignore_errors=True)
                (self.folder / BEST).replace(self.folder / CONTROLNET)
        rows = validations(self.log)
        return {"used": self.settings.use, "best": best_of(rows, self.settings), "last": rows[-1]}

    @torch.no_grad()
    def _look(self, step: int) -> dict[str, Any]:
        """The figures of one validation; writes its grid of images."""
        # As sampling leaves it: a first validation in a process must not differ from a later one.
        self.networks.averaged_control.eval().requires_grad_(False)
        with self.runtime.autocast():
            buckets = self._losses()
            own, other = self._images()
        data, grid = self.held_out, Path("validation") / f"step-{step:06d}.png"
        # A row for each sample: real image, its mask, image under it, another mask, image under that.
        grey = [masks[:, None].expand_as(own) for masks in (data.masks, data.other_masks)]
        columns = torch.cat([data.images, grey[0], own, grey[1], other], dim=3)
        (self.folder / grid).parent.mkdir(exist_ok=True)
        write_png(self.folder / grid, np.concatenate(as_pixels(columns)))
        return {
            "loss": float(f"{np.mean(buckets):.5g}"),
            "buckets": buckets,
            "alignment": self._alignment(own, other),
            "alignment_by": "swap" if self.judge is None else "judge",
            "grid": grid.as_posix(),
        }

    def _losses(self) -> list[float]:
        """Mean squared error of each range of timesteps, at its middle; unweighted."""
        networks, count, buckets = self.networks, len(self.held_out.ids), _BUCKETS
        errors = []
        for rows in torch.arange(count * buckets).split(self.config.finetune.batch_size):
            batch = self._batch(rows).to(self.runtime.device)
            error = denoising_error(
                networks.averaged_unet, networks.averaged_control, batch, networks.schedule
            )
            errors.append(error.mean(dim=(1, 2)).cpu())
        # Fewer digits than float32 has: the last ones were seen to differ between two equal runs.
        means = torch.cat(errors).view(count, buckets).mean(dim=0)
        return [float(f"{mean:.5g}") for mean in means.tolist()]

    def _batch(self, rows: Tensor) -> Batch:
        """Row r is sample r // buckets at the middle of bucket r % buckets, with noise of its own."""
        data, buckets, tuned = self.held_out, _BUCKETS, self.config.finetune
        sample, bucket = rows // buckets, rows % buckets
        shown = condition(data.masks, data.depths, tuned.condition, tuned.depth_under_mask)
        noise = [
            torch.randn(
                data.latents.shape[1:],
                generator=torch_rng("validation noise", self.config.seed, data.ids[number], place),
            )
            for number, place in zip(sample.tolist(), bucket.tolist(), strict=True)
        ]
        return Batch(
            clean=data.latents[sample],
            noise=torch.stack(noise),
            t=((bucket + 0.5) * self.networks.schedule.timesteps / buckets).long(),
            shown=shown[sample],
            masks=data.masks[sample],
            text=self.text.expand(len(rows), -1, -1),
        )

    def _images(self) -> tuple[Tensor, Tensor]:
        """N,3,S,S images under their own masks, and under those of others with the same seeds and depths.

        Autoencoder and text encoder are loaded for this and leave memory again.
        """
        folder = resolve(self.config.generator.base, "pipeline")
        base = load_base(folder, unet=self.networks.averaged_unet).to(self.runtime.device)
        generator = Generator(base, self.networks.averaged_control)
        data, tuned, prompt = self.held_out, self.config.finetune, self.config.generator.prompt.text
        seeds = [seed_for("validation", self.config.seed, name) for name in data.ids]
        made = []
        for shown in swapped_conditions(
            data.masks, data.other_masks, data.depths, tuned.condition, tuned.depth_under_mask
        ):
            parts = []
            for start in range(0, len(seeds), tuned.batch_size):
                rows = slice(start, start + tuned.batch_size)
                prompts = [prompt] * len(seeds[rows])
                parts.append(generator.sample(shown[rows], prompts, seeds[rows], _SAMPLING))
            made.append(torch.cat(parts))
        return made[0], made[1]

    def _alignment(self, own: Tensor, other: Tensor) -> float:
        """Mean score of all images; by a judge, its Dice as the admission to the bank asks for it.

        Validation masks belong to groups that no network of the judge has seen, so all of them score.
        """
        masks, others = self.held_out.masks, self.held_out.other_masks
        if self.judge is None:
            return float(np.mean(swap_alignment(own, other, masks, others)))
        pairs = ((own, masks), (other, others))
        dice = [self.judge.dice(as_pixels(images), (wanted > 0).byte().numpy()) for images, wanted in pairs]
        return float(np.mean(np.concatenate(dice)))


def swap_alignment(own: Tensor, other: Tensor, masks: Tensor, other_masks: Tensor) -> list[float]:
    """Whether swapping the mask moves the lesion and nothing else: N scores in [-1, 1], without any judge.

    Two images of the same seed should differ where their masks differ. The score is the correlation, over
    pixels, between how much the images differ and whether the masks do. It is 0 where the images are equal,
    as long as the ControlNet does nothing, and also where the masks are. Images are N,3,S,S, masks N,S,S.
    """
    moved = (own - other).abs().mean(dim=1).flatten(1).double()
    swapped = (masks != other_masks).flatten(1).double()
    moved, swapped = (x - x.mean(dim=1, keepdim=True) for x in (moved, swapped))
    scale = moved.norm(dim=1) * swapped.norm(dim=1)
    scores = torch.where(scale > 0, (moved * swapped).sum(dim=1) / scale.clamp(min=1e-12), 0.0)
    return scores.tolist()


def validations(log: JsonLines) -> list[dict[str, Any]]:
    """The rows of a log that are validations: `step`, `loss`, `buckets`, `alignment` and by what, `grid`."""
    return [{"step": row["step"], **row["validation"]} for row in log.rows() if "validation" in row]


def best_of(rows: Sequence[dict[str, Any]], settings: GeneratorValidationConfig) -> dict[str, Any]:
    """The best validation; of equal ones the first."""
    sign = 1 if settings.best_by == "loss" else -1
    return min(rows, key=lambda row: sign * row[settings.best_by])


def exported_step(folder: Path) -> int | None:
    """After how many steps the weights in a folder were exported; None if there are none."""
    path = folder / _STEP
    return int(read_json(path)["step"]) if path.exists() else None
