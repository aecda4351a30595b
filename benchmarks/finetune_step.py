"""What a step of the fine-tuning costs, against the straightforward loop.

The straightforward loop does what the public training scripts do: at each step it augments the images of its
batch, encodes them with the autoencoder and their prompts with the text encoder, then takes the same step of
the optimiser. Ours reads latents and embeddings that were made once. Ratios are medians over interleaved
rounds inside one run. Both use one thread and count its CPU time, so that a busy machine slows neither. What
the encoding costs beforehand is given in steps.

    python benchmarks/finetune_step.py [--preset tiny] [--images 16] [--rounds 15]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcpmix.config import Config
from mcpmix.config_file import resolve_config
from mcpmix.core.device import Runtime
from mcpmix.core.processes import Processes
from mcpmix.core.seeds import numpy_rng, torch_rng
from mcpmix.data.augment import apply_colour, draw_colour
from mcpmix.data.index import Arrays
from mcpmix.generator.finetune_trainer import Trainer, build_networks, prepare, turn
from mcpmix.networks.diffusion import (
    Batch,
    DiffusionBase,
    embed_prompts,
    encode_images,
    lesion_emphasis,
    load_base,
    noise_schedule,
)
from mcpmix.networks.generator import control_from_base
from mcpmix.networks.weight_files import resolve

RESULT = Path(__file__).parent / "results" / "finetune_step.json"
RUNTIME = Runtime(torch.device("cpu"), torch.float32, "benchmark")


def make_arrays(count: int, size: int) -> tuple[Arrays, np.ndarray]:
    """Random images with masks and depths; what they show does not change the cost."""
    rng = numpy_rng("benchmark")
    images = rng.integers(256, size=(count, size, size, 3)).astype(np.uint8)
    masks = (rng.random((count, size, size)) < 0.1).astype(np.uint8)
    arrays = Arrays(tuple(str(number) for number in range(count)), images, masks)
    return arrays, rng.random((count, size, size)).astype(np.float32)


class PlainLoop:
    """The same optimiser step with everything encoded when it is needed."""

    def __init__(self, base: DiffusionBase, arrays: Arrays, depths: np.ndarray, config: Config) -> None:
        self.base, self.config, self.settings = base, config, config.finetune
        self.images = torch.from_numpy(arrays.images).permute(0, 3, 1, 2).float() / 255
        self.masks = torch.from_numpy(arrays.masks).float()
        self.depths = torch.from_numpy(depths)
        self.schedule = noise_schedule(base.scheduler)
        self.control = control_from_base(base)
        self.average = AveragedModel(self.control, multi_avg_fn=get_ema_multi_avg_fn(self.settings.ema_decay))
        self.optimiser = torch.optim.AdamW(
            self.control.parameters(), self.settings.learning_rate, weight_decay=1e-2
        )

    def step(self, index: int) -> None:
        """Load, encode, predict, learn."""
        loss = self._loss(self._batch(index))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.control.parameters(), 1.0)
        self.optimiser.step()
        self.average.update_parameters(self.control)

    def _loss(self, batch: Batch) -> Tensor:
        noisy = self.schedule.add_noise(batch.clean, batch.noise, batch.t)
        down, middle = self.control(noisy, batch.t, batch.text, batch.shown, return_dict=False)
        prediction: Tensor = self.base.unet(
            noisy,
            batch.t,
            batch.text,
            down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
        ).sample
        error = (prediction - self.schedule.target(batch.clean, batch.noise, batch.t)).square().mean(dim=1)
        height, width = error.shape[1:]
        emphasis = lesion_emphasis(batch.masks, (height, width), self.settings.lesion_weight)
        weight = self.schedule.min_snr_weight(batch.t, self.settings.min_snr_gamma)
        return ((error * emphasis).mean(dim=(1, 2)) * weight).mean()

    def _batch(self, index: int) -> Batch:
        count = self.settings.batch_size
        rng = numpy_rng("plain", index)
        chosen, view = rng.integers(len(self.images), size=count), int(rng.integers(8))
        colour = draw_colour(count, torch_rng("plain colour", index), self.settings.colour)
        seen = turn(apply_colour(colour, self.images[chosen]), view)
        clean = encode_images(self.base.vae, seen * 2 - 1)
        prompts = [self.config.generator.prompt.text if rng.random() > 0.1 else "" for _ in range(count)]
        return Batch(
            clean=clean,
            noise=torch.randn(clean.shape, generator=torch_rng("plain noise", index)),
            t=torch.from_numpy(rng.integers(self.schedule.timesteps, size=count)),
            shown=turn(torch.stack([self.masks[chosen], self.depths[chosen]], dim=1), view),
            masks=turn(self.masks[chosen], view),
            text=self._embed(prompts),
        )

    def _embed(self, prompts: list[str]) -> Tensor:
        """One pass for all prompts of the batch: `embed_prompts` alone would compute equal ones once."""
        different = [f"{prompt}{' ' * number}" for number, prompt in enumerate(prompts)]
        return embed_prompts(self.base, different)


def measure(steps: dict[str, Callable[[int], object]], rounds: int, calls: int) -> dict[str, list[float]]:
    """CPU seconds per step of each variant in each round; the order turns with the round."""
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        steps[name](0)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.process_time()
            for call in range(calls):
                steps[name](1 + number * calls + call)
            times[name].append((time.process_time() - start) / calls)
    return times


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2, help="steps of each variant per round")
    parser.add_argument("overrides", nargs="*", help="settings to change, as finetune.batch_size=8")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    config = resolve_config({"preset": arguments.preset}, arguments.overrides)
    arrays, depths = make_arrays(arguments.images, config.data.size)
    folder = resolve(config.generator.base, "pipeline")
    plain = PlainLoop(load_base(folder), arrays, depths, config)

    base = load_base(folder)
    start = time.process_time()
    examples = prepare(base, arrays, depths, config)
    encoding = time.process_time() - start
    ours = Trainer(build_networks(base, config.finetune, RUNTIME), examples, config, RUNTIME, Processes())

    times = measure({"plain": plain.step, "ours": ours.step}, arguments.rounds, arguments.calls)
    ratios = [slow / fast for slow, fast in zip(times["plain"], times["ours"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    result = {
        "arguments": vars(arguments),
        "size": config.data.size,
        "batch": config.finetune.batch_size,
        "cpu_ms": {name: round(1000 * statistics.median(values), 1) for name, values in times.items()},
        "ratio": round(statistics.median(ratios), 2),
        "quartiles": [round(low, 2), round(high, 2)],
        "encoding_in_plain_steps": round(encoding / statistics.median(times["plain"]), 1),
    }
    print(json.dumps(result, indent=1))
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
