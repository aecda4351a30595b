"""How much of a network's own throughput is left when a folder of images is segmented.

    python benchmarks/prediction.py [--size 352] [--images 60] [--rounds 5]

The network alone takes images that are in memory, at its own size; `predict_files` reads JPEGs of 1280 x 1024
pixels, and writes masks of that size. Both have the same threads. Rounds alternate inside one run, so that a
busy machine slows both alike. Fills docs/segmenters.md.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from _markers import fill
from mcpmix.core.files import write_json
from mcpmix.networks.segmenter import build_segmenter, save_segmenter
from mcpmix.phantom import render
from mcpmix.segmenter.predict import load_segmenter, predict_files

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "prediction.json"
PICTURE = (1280, 1024)


def prepare(place: Path, variant: str, size: int, count: int) -> None:
    """An untrained segmenter and a folder of JPEGs."""
    torch.manual_seed(0)
    network = build_segmenter("segformer", variant)
    save_segmenter(network, place / "segmenter", {"name": "segformer", "variant": variant, "size": size})
    (place / "images").mkdir()
    for number in range(count):
        frame = Image.fromarray(render(0, number % 4, number, 256).image)
        frame.resize(PICTURE, Image.Resampling.BICUBIC).save(place / "images" / f"{number}.jpg", quality=90)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variant", default="b0", help="of SegFormer")
    parser.add_argument("--size", type=int, default=352)
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows: dict[str, list[float]] = {"network alone": [], "folder": []}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        prepare(place, options.variant, options.size, options.images)
        network = load_segmenter(place / "segmenter").network
        batch = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 3, options.size, options.size)))
        for number in range(options.rounds + 1):
            start = time.perf_counter()
            with torch.inference_mode():
                for _ in range(options.images):
                    network(batch.float())
            middle = time.perf_counter()
            predict_files(place / "segmenter", place / "images", place / f"out-{number}", device="cpu")
            if number:  # the first round warms up
                rows["network alone"].append(options.images / (middle - start))
                rows["folder"].append(options.images / (time.perf_counter() - middle))
    shares = [folder / alone for alone, folder in zip(*rows.values(), strict=True)]
    share = statistics.median(shares)
    arguments = vars(options) | {"threads": torch.get_num_threads(), "picture": PICTURE}
    write_json(RESULT, {"arguments": arguments, "images per second": rows, "share": share})
    alone, folder = (statistics.median(values) for values in rows.values())
    fill(
        ROOT / "docs" / "segmenters.md",
        "prediction",
        f"Reading and writing happen while the network works: of SegFormer {options.variant} at "
        f"{options.size} px, which takes {alone:.1f} images a second by itself, {folder:.1f} are left with "
        f"JPEGs of {PICTURE[0]} x {PICTURE[1]} px ({100 * share:.0f} %; median of {options.rounds} rounds on "
        f"{arguments['threads']} threads, `python benchmarks/prediction.py`).",
    )
    print(f"network alone {alone:.2f}, folder {folder:.2f} images per second, share {share:.2f} {shares}")


if __name__ == "__main__":
    main()
