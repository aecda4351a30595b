"""Banks of pairs made worse on purpose: counterparts with a wrong lesion, or blurred ones."""

import shutil
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from PIL import Image, ImageFilter

from _swap import draw_partners
from mcpmix.core.files import file_digest
from mcpmix.core.pixels import Pixels
from mcpmix.core.progress import SILENT
from mcpmix.core.seeds import numpy_rng, seed_for
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace
from mcpmix.data.index import Arrays
from mcpmix.data.sample import read_image
from mcpmix.generator.bank import contact_sheet
from mcpmix.generator.judge import dice_of
from mcpmix.generator.ledger import LEDGER, Ledger, Row, read_verified, write_synthetic

Kind = Literal["wrong", "blurred"]


def degrade(
    pairs: Artifact, arrays: Arrays, kind: Kind, percent: int, *, sigma: float, seed: int, out: Path
) -> Artifact:
    """A bank with the admitted images of another one, a share of which is spoilt; reused if it is there.

    `wrong`: the image is a counterpart of another mask that hardly overlaps, so the lesion of the picture is
    not where the label says. `blurred`: by a Gaussian. The images that are spoilt at a share are among those
    of every larger share, and the same for both kinds.

    Args:
        pairs: the bank; it is not changed.
        arrays: the training images and masks that it belongs to.
        percent: share of the images to spoil, in [0, 100].
        sigma: of the blur, in pixels.
        seed: of the choice of images.
        out: folder of the new bank.

    Returns:
        The bank. `counts.overlap` is the mean Dice of wrong lesions with the labels; None without any.
    """
    settings = {"kind": kind, "percent": percent, "sigma": sigma if kind == "blurred" else None}
    key = StageKey("degrade", settings, {"pairs": pairs.digest}, seed)
    if (finished := reuse(out, key, SILENT)) is not None:
        return finished
    rows = read_verified(pairs.folder, pairs.digest, pairs.manifest["counts"]["ledger"])
    rows = [row for row in rows if row["admitted"]]
    count = round(len(rows) * percent / 100)
    spoilt = set(numpy_rng("degrade", seed).permutation(len(rows))[:count].tolist())
    sources = _other_rows(rows, arrays, seed) if kind == "wrong" else rows
    with workspace(out, key) as space:
        (space.folder / LEDGER).unlink(missing_ok=True)  # what a kill left is quickly made again
        ledger = Ledger(space.folder / LEDGER, key.digest)
        for number, (row, source) in enumerate(zip(rows, sources, strict=True)):
            path = space.folder / row["file"]
            changes: Row = {}
            path.parent.mkdir(parents=True, exist_ok=True)
            if number in spoilt:
                pixels = read_image(pairs / source["file"])
                pixels = _blur(pixels, sigma) if kind == "blurred" else pixels
                write_synthetic(path, pixels, run=out.name, seed=row["seed"])
                changes = {
                    "image_sha256": file_digest(path),
                    "scores": {},
                    "degraded": [kind, source["file"]],
                }
            else:
                shutil.copyfile(pairs / row["file"], path)
            ledger.append({name: value for name, value in row.items() if name != "sha256"} | changes)
        contact_sheet(space.folder, ledger.rows, arrays).save(space.folder / "sheet.png", optimize=True)
        overlaps = [_overlap(arrays, rows[number], sources[number]) for number in sorted(spoilt)]
        return space.finish(
            parents=len(arrays),
            tries=len(rows),
            images=len(rows),
            spoilt=len(spoilt),
            overlap=fmean(overlaps) if kind == "wrong" and overlaps else None,
            ledger=ledger.head,
        )


def _other_rows(rows: list[Row], arrays: Arrays, seed: int) -> list[Row]:
    """For each row one of another mask that hardly overlaps its own; replicas of a mask draw separately."""
    by_parent: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_parent[row["parent"]].append(row)
    names = [name for name in arrays.ids if name in by_parent]
    masks, fold = arrays.take(names).masks, [0] * len(names)
    partners = {
        replica: draw_partners(masks, fold, names, seed_for(seed, "wrong", replica))
        for replica in {row["replica"] for row in rows}
    }
    found = []
    for row in rows:
        candidates = by_parent[names[partners[row["replica"]][names.index(row["parent"])]]]
        found.append(candidates[row["replica"] % len(candidates)])
    return found


def _overlap(arrays: Arrays, row: Row, other: Row) -> float:
    one, two = (arrays.masks[arrays.ids.index(each["parent"])][None] for each in (row, other))
    return float(dice_of(one.astype(bool), two)[0])


def _blur(pixels: Pixels, sigma: float) -> Pixels:
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(sigma)))
