"""What prints of images find, and what they give away; fills docs/integrity.md.

    python benchmarks/fingerprints.py --tested CVC-ClinicDB/images --known Kvasir-SEG/images

Pairs of near-duplicates by looks, which stay in a run, and by prints, which travel with networks; and how
close an attacker comes to the grey version behind a print who has all images of the other set: these and
pictures made up like them are printed too, and the mean of those that share a hash is the guess.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from _markers import fill
from mcpmix.core.files import write_json
from mcpmix.core.pixels import list_images
from mcpmix.data.leakage import Floats, fingerprints, look_of, matches, print_of
from mcpmix.data.prints import _directions
from mcpmix.data.sample import read_image

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "fingerprints.json"
MADE_UP, BATCH = 200_000, 10_000


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


def sides(greys: Floats) -> Floats:
    """The signs (N, 256, 48) that the hashes of grey versions (N, 1024) are made of."""
    directions, chosen = _directions()
    return (greys @ directions.T.astype(np.float32) > 0)[:, chosen].astype(np.int64)


def attack(mine: Floats, theirs: Floats) -> tuple[Floats, float]:
    """Guesses at grey versions `mine` from their hashes alone, and the share of them that has a lead.

    The signs are compared themselves: equal hashes of other signs would only mislead the attacker.
    """
    rng, mean = np.random.default_rng(0), theirs.mean(axis=0)
    _, spread, axes = np.linalg.svd(theirs - mean, full_matrices=False)
    scaled = axes * (spread / len(theirs) ** 0.5)[:, None]
    weights = rng.integers(2**62, size=sides(mine[:1]).shape[2])
    wanted = sides(mine) @ weights
    total, leads = np.zeros_like(mine), np.zeros(len(mine))
    draws = (rng.standard_normal((BATCH, len(axes))) @ scaled + mean for _ in range(MADE_UP // BATCH))
    for tried in (theirs, *draws):
        codes = sides(tried.astype(np.float32)) @ weights
        for hashed in range(codes.shape[1]):
            _, own, other = np.intersect1d(wanted[:, hashed], codes[:, hashed], return_indices=True)
            total[own] += tried[other]
            leads[own] += 1
    return np.where(leads[:, None] > 0, total, mean), float((leads > 0).mean())


def measure(tested: list[str], known: list[str]) -> dict[str, object]:
    """Both questions, from the looks of the images."""
    looks = [*tested, *known]
    prints = [print_of(look) for look in looks]
    by_look = {(m.first, m.second) for m in matches(looks, looks) if m.first < m.second}
    by_print = {(m.first, m.second) for m in matches(looks, prints) if m.first < m.second}
    further = by_print - by_look
    greys = fingerprints(looks)[1]
    mine, theirs = greys[: len(tested)], greys[len(tested) :]
    guess, share = attack(mine, theirs)
    best = likeness(guess, mine)
    sizes = {side: likeness(thumbnails(mine, side), mine) for side in range(2, 17)}
    return {
        "images": len(looks),
        "pairs by looks": len(by_look),
        "of these by prints": len(by_look & by_print),
        "further pairs by prints": len(further),
        "of these from two sets": sum(one < len(tested) <= other for one, other in further),
        "least correlation of a further pair": round(min(float(greys[a] @ greys[b]) for a, b in further), 3),
        "share with a lead": round(share, 3),
        "correlation of the guess": round(best, 3),
        "correlation of the mean image": round(
            likeness(np.tile(theirs.mean(axis=0), (len(mine), 1)), mine), 3
        ),
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
    own, other = (folder.parent.name for folder in sets)
    text = (
        f"with all {len(known)} images of {other} and {MADE_UP} pictures made up like them, guesses at the "
        f"grey versions of {own} correlate with them by {found['correlation of the guess']}, as thumbnails "
        f"of {side} x {side} pixels would (the mean image of the known ones: "
        f"{found['correlation of the mean image']}). Among these {found['images']} images, prints find "
        f"{found['of these by prints']} of the {found['pairs by looks']} pairs that full looks find, and "
        f"{found['further pairs by prints']} more, which correlate by "
        f"{found['least correlation of a further pair']} or more; {found['of these from two sets']} of those "
        "are from two sets (`benchmarks/fingerprints.py`)."
    )
    fill(ROOT / "docs" / "integrity.md", "fingerprints", f"  {text}")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
