"""How time and memory grow with the number of images: made-up data sets of 512 px, stage by stage.

    python benchmarks/scale.py --sizes 500 5000 --folder /somewhere/with/space [--stages check depth ...]

Each stage is a command in a process of its own that finds the earlier stages finished. Networks are the
smallest that fit, with random weights, and take few steps: what is measured is what the program does around
them. Images are frames of the phantom, shifted, tinted and lit so that no two are near-duplicates.

Seconds are those of the CPU, because the machine may be shared. Memory is that of the largest process of a
stage: its own (anonymous memory, read every 20 ms from /proc, so on Linux only), and all that was resident,
with mapped files, which the system drops when it needs the room.

Adds to results/scale.json, where a new figure replaces that of the same stage and size, and writes the table
of docs/data.md; `--table` does only that.
"""

import argparse
import csv
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor, nn

from _markers import fill

HERE = Path(__file__).parent
RESULT = HERE / "results" / "scale.json"
PAGE = HERE.parent / "docs" / "data.md"
SIZE = 512
SMALL = 64
STAGES = {  # of the command line, and the stage of the run that it ends with
    "check": "",
    "index": "dataset",
    "depth": "depth",
    "finetune": "generator",
    "synthesize": "pairs",
    "train": "segmenter",
    "evaluate": "evaluation",
    "report": "report",
}
SEARCHES = {  # of stages, by themselves and on small images, for sizes at which the stages take too long
    "near-duplicates": "the search for near-duplicates among all images, given their looks",
    "copy check": "what `synthesize` measures on the training images before it draws, at 32 px",
}
OVERRIDES = [
    f"data.size={SIZE}",
    "finetune.steps=20",
    "finetune.batch_size=4",
    "finetune.colour=0",
    "synthesis.replicas=1",
    "synthesis.steps=1",
    "synthesis.guidance=1",
    "synthesis.mask_guidance=1",
    "synthesis.admission.enabled=false",  # the copy check is measured by itself
    "segmenter.name=scale:Thin",
    "segmenter.weights=null",
    "train.arms=[mcpmix]",
    "train.seeds=[0]",
    "train.epochs=1",
    "train.validate_every=1",
    "evaluation.seen=mark",
    "runtime.threads=1",
]


class Thin(nn.Module):
    """A segmenter that costs nothing and finds lesions everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 1, 8, stride=8)
        nn.init.constant_(self.layer.bias, 3.0)

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,h,w logits."""
        return nn.functional.interpolate(self.layer(images), images.shape[-2:])


def make_images(folder: Path, count: int) -> None:
    """Images (JPEG), masks (PNG) and a table of groups of five; what is there is kept."""
    from mcpmix.phantom import render

    frames = [render(7, patient, 0, SIZE) for patient in range(8)]
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image, mask = folder / "images" / f"i{number:06}.jpg", folder / "masks" / f"i{number:06}.png"
        if mask.exists():
            continue
        frame = frames[number % len(frames)]
        shown, shift = vary(frame.image, number)
        Image.fromarray(shown).save(image, quality=80)
        Image.fromarray(np.roll(frame.mask, shift, (0, 1)) * np.uint8(255)).save(mask)
    with (folder / "groups.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "group"])
        rows.writerows([f"i{number:06}", f"g{number // 5:05}"] for number in range(count))


def vary(image: np.ndarray, number: int) -> tuple[np.ndarray, tuple[int, int]]:
    """An S,S,3 image shifted, lit and tinted by chance, and the shift."""
    rng, size = np.random.default_rng(number), len(image)
    down, right = rng.integers(size, size=2).tolist()
    light = Image.fromarray(rng.normal(1, 0.5, (5, 5)).astype(np.float32))
    light = np.asarray(light.resize((size, size), Image.Resampling.BICUBIC))
    tint = rng.uniform(0.7, 1.1, 3).astype(np.float32)
    shown = np.roll(image, (down, right), (0, 1)) * light[..., None] * tint
    return shown.clip(0, 255).astype(np.uint8), (down, right)


def make_networks(folder: Path) -> None:
    """The smallest base that a ControlNet fits, this, and features, with random weights."""
    if (folder / "features").exists():
        return
    import torch
    from diffusers import AutoencoderTiny, UNet2DConditionModel

    from mcpmix.networks.diffusion import DiffusionBase, load_base, save_base
    from mcpmix.networks.features import SmallFeatures, save_features
    from mcpmix.networks.generator import control_from_base
    from mcpmix.networks.weight_files import resolve

    torch.manual_seed(0)
    base = load_base(resolve("embedded", "pipeline"))  # its text encoder and scheduler
    unet = UNet2DConditionModel(
        sample_size=SIZE // 8,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 8, 8),
        down_block_types=("DownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=base.unet.config.cross_attention_dim,
        attention_head_dim=4,
        norm_num_groups=4,
    )
    vae = AutoencoderTiny(
        encoder_block_out_channels=(4,) * 4,
        decoder_block_out_channels=(4,) * 4,
        num_encoder_blocks=(0, 0, 0, 1),
        num_decoder_blocks=(1, 0, 0, 0),
    )
    small = DiffusionBase(unet, vae, base.text_encoder, base.tokenizer, base.scheduler)
    save_base(small, folder / "base")
    control_from_base(small, 2, (4, 4, 4, 4)).save_pretrained(folder / "control")
    save_features(SmallFeatures((8, 8, 8, 128)), folder / "features")


def search(kind: str, count: int) -> None:
    """A search, in this process, on small images that are made up as above."""
    from mcpmix.data.index import Arrays
    from mcpmix.data.leakage import look_of, matches
    from mcpmix.generator.copies import CopyCheck
    from mcpmix.networks.features import SmallFeatures
    from mcpmix.phantom import render

    frames = [render(7, patient, 0, SMALL) for patient in range(8)]
    images = np.stack([vary(frames[number % 8].image, number)[0] for number in range(count)])
    spent = time.process_time()
    if kind == "near-duplicates":
        looks = [look_of(image) for image in images]
        spent = time.process_time()
        print(f"{sum(match.first < match.second for match in matches(looks, looks))} pairs")
    else:
        small = np.ascontiguousarray(images[:, ::2, ::2])
        arrays = Arrays(tuple(map(str, range(count))), small, small[..., 0])
        groups = [str(number // 5) for number in range(count)]
        none = Arrays((), small[:0], small[:0, ..., 0])
        CopyCheck(SmallFeatures((8, 8, 8, 128)).eval(), arrays, groups, none, seed=0)
    print(f"{kind}: {time.process_time() - spent:.1f} s without the images")


def work(stage: str, home: Path, count: int) -> None:
    """One stage, in this process."""
    from mcpmix.config_file import resolve_config
    from mcpmix.preflight import check
    from mcpmix.run import run

    data, networks = home / "data", home / "networks"
    settings = {
        "preset": "tiny",
        "name": "run",
        "output": str(home),
        "data": {
            "source": "folder",
            "images": str(data / "images"),
            "masks": str(data / "masks"),
            "groups": str(data / "groups.csv"),
        },
        "generator": {"base": str(networks / "base")},
        "finetune": {"start": str(networks / "control")},
        "rla": {"features": str(networks / "features")},
    }
    config = resolve_config(settings, OVERRIDES)
    if stage == "check":
        result = check(config)
        if any(not str(problem).startswith(str(home)) for problem in result.problems):
            raise SystemExit("\n".join(map(str, result.problems)))
    else:
        run(config, until=STAGES[stage])
    print(f"{count} images: {stage} is done")


def measure(stage: str, home: Path, count: int) -> dict[str, float]:
    """Run a stage in a child; CPU seconds of it and its children, and the largest memory of any of them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, "--one", stage, "--folder", str(home), "--sizes", str(count)]
    started, own, resident = time.monotonic(), 0, 0
    child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path_of_children()})
    while child.poll() is None:
        for process in family(child.pid):
            found = memory_of(process)
            own, resident = max(own, found[0]), max(resident, found[1])
        time.sleep(0.02)
    if child.returncode:
        raise SystemExit(f"{stage} of {count} images failed")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = {"cpu_seconds": round(spent, 1), "seconds": round(time.monotonic() - started, 1)}
    return {**seconds, "own_gb": round(own / 1e9, 2), "resident_gb": round(resident / 1e9, 2)}


def path_of_children() -> str:
    """Where children find this script as a module, for its segmenter."""
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def family(parent: int) -> list[int]:
    """A process and all below it."""
    found = [parent]
    for process in found:
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                found += map(int, task.read_text().split())
            except OSError:  # it has ended
                continue
    return found


def memory_of(process: int) -> tuple[int, int]:
    """Bytes that a process has for itself now, and the most that ever was resident; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in lines)
             if name in ("RssAnon", "RssShmem", "VmHWM")}  # fmt: skip
    return found.get("RssAnon", 0) + found.get("RssShmem", 0), found.get("VmHWM", 0)


def table(result: dict[str, dict[str, dict[str, float]]]) -> str:
    """A row for each stage, with time and memory at each size; a dash where nothing was measured."""
    sizes = sorted(map(int, result["sizes"]))
    heads = [f"{size:,} images: CPU | memory" for size in sizes]
    rows = [f"| stage | {' | '.join(heads)} |", "|---|" + "---:|" * (2 * len(sizes))]
    for stage in (*STAGES, *SEARCHES):
        cells = []
        for size in sizes:
            found = result["sizes"][str(size)].get(stage)
            cells += [f"{found['cpu_seconds']:,.0f} s", f"{found['own_gb']:.2f} GB"] if found else ["-", "-"]
        rows.append(f"| `{stage}` | {' | '.join(cells)} |")
    facts = result["facts"]
    note = (
        f"Images of {SIZE} x {SIZE} pixels. Seconds of one CPU core; memory of the largest process, without "
        "mapped files. A dash: not measured. "
        f"`python benchmarks/scale.py` on {facts['date']}, {facts['machine']}."
    )
    kinds = [f"`{name}`: {text}." for name, text in SEARCHES.items()]
    return "\n".join([*rows, "", " ".join([note, *kinds])])


def main() -> None:
    """Make data, measure, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 5000, 50000])
    parser.add_argument("--stages", nargs="+", choices=[*STAGES, *SEARCHES], default=[*STAGES, *SEARCHES])
    parser.add_argument("--folder", type=Path, default=Path("scale-data"), help="gets data and runs, by size")
    parser.add_argument("--clear", action="store_true", help="delete the data of a size when it is done")
    parser.add_argument("--table", action="store_true", help="write the table from the stored figures only")
    parser.add_argument("--one", choices=[*STAGES, *SEARCHES], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        count = options.sizes[0]
        search(options.one, count) if options.one in SEARCHES else work(options.one, options.folder, count)
        return
    for count in () if options.table else options.sizes:
        home = options.folder.absolute() / str(count)
        if STAGES.keys() & set(options.stages):
            make_images(home / "data", count)
            make_networks(home / "networks")
        for stage in options.stages:
            found = measure(stage, home, count)
            print(count, stage, found, flush=True)
            result = json.loads(RESULT.read_text()) if RESULT.exists() else {"sizes": {}}
            result["sizes"].setdefault(str(count), {})[stage] = found
            result["facts"] = {"date": time.strftime("%Y-%m-%d"), "machine": platform.machine()}
            RESULT.write_text(json.dumps(result, indent=1) + "\n")
        if options.clear:
            shutil.rmtree(home)
    fill(PAGE, "scale", table(json.loads(RESULT.read_text())))


if __name__ == "__main__":
    main()
