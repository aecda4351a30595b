"""What an epoch of images costs: decoded from files, from the cache, and from a plain memory map.

Files are made from the phantom (JPEG of 1024 x 768 and PNG of 384 x 288 pixels), or are those of a folder.
All three variants give the same batches in the same random order; ratios are medians over interleaved rounds
inside one run, of CPU time, which other jobs on the machine disturb least. Everything is in the file system's
memory, as in the second and later epochs of a training.

    python benchmarks/loading.py [--count 96] [--size 256] [--rounds 7] [--images DIR --masks DIR]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from mcpmix.core.seeds import numpy_rng
from mcpmix.data.dataset import build_index
from mcpmix.data.index import Record, load_arrays
from mcpmix.data.layouts import scan_folder
from mcpmix.data.sample import Sample, read_image, read_mask, resize_image, resize_mask
from mcpmix.data.splits import Split
from mcpmix.phantom import render

RESULT = Path(__file__).parent / "results" / "loading.json"
RENDERED = 256  # pixels of a phantom frame before it is enlarged
GRAIN = 3.0  # grey levels of sensor noise, which cameras have and JPEG has to store
CALLS = 8  # epochs of the two maps per round: they are short
Epoch = Callable[[Sequence[np.ndarray]], int]


def write_files(folder: Path, count: int, width: int, height: int, ending: str) -> list[Sample]:
    """Phantom frames as a camera would store them."""
    samples = []
    for number in range(count):
        scene = render(5, number, 0, RENDERED)
        enlarged = Image.fromarray(scene.image).resize((width, height), Image.Resampling.BICUBIC)
        grain = numpy_rng("grain", number).normal(0, GRAIN, (height, width, 3))
        pixels = np.clip(np.asarray(enlarged) + grain, 0, 255).astype(np.uint8)
        image, mask = folder / f"{number}{ending}", folder / f"{number}_mask.png"
        Image.fromarray(pixels).save(image, **({"quality": 90} if ending == ".jpg" else {}))
        Image.fromarray(scene.mask * np.uint8(255)).resize((width, height), Image.Resampling.NEAREST).save(
            mask
        )
        samples.append(Sample(str(number), image, mask, str(number), "phantom"))
    return samples


def decoding(records: Sequence[Record], size: int) -> Epoch:
    """An epoch that decodes every file."""

    def epoch(batches: Sequence[np.ndarray]) -> int:
        total = 0
        for chosen in batches:
            images = np.stack([resize_image(read_image(records[row].image), size) for row in chosen])
            masks = np.stack([resize_mask(read_mask(records[row].mask), size) for row in chosen])
            total += len(images) + len(masks)
        return total

    return epoch


def mapped(images: np.ndarray, masks: np.ndarray) -> Epoch:
    """An epoch that copies rows of two maps."""

    def epoch(batches: Sequence[np.ndarray]) -> int:
        return sum(len(images[chosen]) + len(masks[chosen]) for chosen in batches)

    return epoch


def plain_maps(folder: Path, images: np.ndarray, masks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same pixels in plain files, mapped."""
    np.save(folder / "plain_images.npy", images)
    np.save(folder / "plain_masks.npy", masks)
    return np.load(folder / "plain_images.npy", mmap_mode="r"), np.load(
        folder / "plain_masks.npy", mmap_mode="r"
    )


def seconds(call: Callable[[], object]) -> float:
    """How much CPU time a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(samples: Sequence[Sample], folder: Path, size: int, rounds: int, batch: int) -> dict[str, object]:
    """Times and ratios of the three variants on one set of files."""
    split = Split(tuple(sample.id for sample in samples), (), ())
    records = build_index(samples, split).records
    first = seconds(lambda: load_arrays(records, size, folder / "cache"))
    again = seconds(lambda: load_arrays(records, size, folder / "cache"))
    arrays = load_arrays(records, size, folder / "cache")
    epochs = {
        "decoding": (decoding(records, size), 1),
        "cache": (mapped(arrays.images, arrays.masks), CALLS),
        "plain map": (mapped(*plain_maps(folder, arrays.images, arrays.masks)), CALLS),
    }
    times: dict[str, list[float]] = {name: [] for name in epochs}
    for number in range(-1, rounds):  # the first round warms up and is not counted
        order = numpy_rng("order", number).permutation(len(records))
        batches = np.array_split(order, max(1, len(order) // batch))
        for name in numpy_rng("turns", number).permutation(list(epochs)).tolist():
            epoch, calls = epochs[name]
            if calls > 1:
                epoch(batches)  # not counted: whoever comes after decoding finds memory in another state
            start = time.process_time()
            for _ in range(calls):
                epoch(batches)
            if number >= 0:
                times[name].append((time.process_time() - start) / calls)
    return {
        "images": len(records),
        "CPU ms per epoch": {
            name: round(1000 * statistics.median(found), 2) for name, found in times.items()
        },
        "decoding / cache": ratio(times["decoding"], times["cache"]),
        "cache / plain map": ratio(times["cache"], times["plain map"]),
        "first opening ms": round(1000 * first, 1),
        "later opening ms, checksums verified": round(1000 * again, 1),
    }


def ratio(first: Sequence[float], second: Sequence[float]) -> dict[str, object]:
    """Median and quartiles of the ratios of rounds."""
    ratios = [one / other for one, other in zip(first, second, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": round(middle, 2), "quartiles": [round(low, 2), round(high, 2)]}


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=96, help="files of each kind; of a folder, at most")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=Path, help="own images in place of phantom files")
    parser.add_argument("--masks", type=Path)
    arguments = parser.parse_args()
    kinds = {"JPEG 1024 x 768": (1024, 768, ".jpg"), "PNG 384 x 288": (384, 288, ".png")}
    rows = {}
    with tempfile.TemporaryDirectory() as place:
        for name, (width, height, ending) in kinds.items() if arguments.images is None else ():
            folder = Path(place) / ending[1:]
            folder.mkdir()
            samples = write_files(folder, arguments.count, width, height, ending)
            rows[name] = measure(samples, folder, arguments.size, arguments.rounds, arguments.batch)
        if arguments.images is not None:
            samples = scan_folder(arguments.images, arguments.masks).samples[: arguments.count]
            rows["own files"] = measure(
                samples, Path(place), arguments.size, arguments.rounds, arguments.batch
            )
    for name, row in rows.items():
        print(name, json.dumps(row, indent=1))
    kept = {name: value for name, value in vars(arguments).items() if name not in ("images", "masks")}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"arguments": kept, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
