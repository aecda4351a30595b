"""What prints of images find, and what they give away; fills docs/integrity.md.

    python benchmarks/fingerprints.py --tested CVC-ClinicDB/images --known Kvasir-SEG/images

Pairs of near-duplicates by looks, which stay in a run, and by prints, which travel with networks; and how
close an attacker comes to the grey version behind a print by ridge regression, having all images of the other
set.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from _markers import fill
from mcpmix.core.files import write_json
from mcpmix.core.pixels import list_images
from mcpmix.data.leakage import Floats, _contents, fingerprints, look_of, matches, print_of
from mcpmix.data.sample import read_image

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "fingerprints.json"
RIDGES = (10, 100, 300, 1000, 3000)


def likeness(one: Floats, other: Floats) -> float:
    """Mean correlation of the rows of two arrays."""
    return float(np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(one, other, strict=True)]))


def thumbnails(greys: Floats, side: int) -> Floats:
    """Grey versions, (N, 1024), as they look after a thumbnail of side x side pixels."""
    made = []
    for grey in greys:
        small = Image.fromarray(grey.reshape(32, 32)).resize((side, side), Image.Resampling.BOX)
        made.append(np.asarray(small.resize((32, 32), Image.Resampling.BICUBIC)).ravel())
    return np.stack(made)


def measure(tested: list[str], known: list[str]) -> dict[str, object]:
    """Both questions, from the looks of the images."""
    looks = [*tested, *known]
    prints = [print_of(look) for look in looks]
    by_look = {(m.first, m.second) for m in matches(looks, looks) if m.first < m.second}
    by_print = {(m.first, m.second) for m in matches(looks, prints) if m.first < m.second}
    bits = 2 * np.unpackbits(_contents(prints), axis=1).astype(np.float32) - 1
    greys = fingerprints(looks)[1]
    theirs, mine = slice(len(tested), None), slice(0, len(tested))
    mean = greys[theirs].mean(axis=0)
    best = 0.0
    for ridge in RIDGES:
        gram = bits[theirs] @ bits[theirs].T + ridge * np.eye(len(known))
        guess = mean + bits[mine] @ bits[theirs].T @ np.linalg.solve(gram, greys[theirs] - mean)
        best = max(best, likeness(guess, greys[mine]))
    sizes = {side: likeness(thumbnails(greys[mine], side), greys[mine]) for side in range(2, 17)}
    return {
        "images": len(looks),
        "pairs by looks": len(by_look),
        "of these by prints": len(by_look & by_print),
        "further pairs by prints": len(by_print - by_look),
        "correlation of the best guess": round(best, 3),
        "correlation of the mean image": round(likeness(np.tile(mean, (len(tested), 1)), greys[mine]), 3),
        "thumbnail of the same correlation": next(
            (side for side, value in sizes.items() if value >= best), 16
        ),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tested", type=Path, help="folder of images whose prints are attacked")
    parser.add_argument("--known", type=Path, help="folder of images that the attacker has")
    arguments = parser.parse_args()
    if arguments.tested is None or arguments.known is None:
        print("not measured: give --tested and --known, two public sets")
        return
    sets = [arguments.tested, arguments.known]
    tested, known = ([look_of(read_image(path)) for path in list_images(folder)] for folder in sets)
    found = measure(tested, known)
    write_json(RESULT, {"sets": [folder.parent.name for folder in sets], **found})
    side = found["thumbnail of the same correlation"]
    fill(
        ROOT / "docs" / "integrity.md",
        "fingerprints",
        f"  with all {len(known)} images of {arguments.known.parent.name}, guesses at the grey versions of "
        f"{arguments.tested.parent.name} correlate with them by {found['correlation of the best guess']}, as "
        f"thumbnails of {side} x {side} pixels would (the mean image: "
        f"{found['correlation of the mean image']}). Among these {found['images']} images, prints find "
        f"{found['of these by prints']} of the {found['pairs by looks']} pairs that full looks find, and "
        f"{found['further pairs by prints']} more that are nearly as alike (`benchmarks/fingerprints.py`).",
    )
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
