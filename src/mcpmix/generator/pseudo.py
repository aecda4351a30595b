"""Stage `pseudo`: masks of unlabelled images, by the judge, where its networks agree.

The judge is trained on labelled images only, and none of its networks has seen an unlabelled one. Where they
agree on the outline, they are seldom wrong together; where they do not, the image stays unlabelled. So does
one in which they find nothing: networks that miss a lesion agree as well.
"""

from itertools import combinations
from pathlib import Path

import numpy as np

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.files import written
from mcpmix.core.pixels import Pixels
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace
from mcpmix.core.training import JsonLines
from mcpmix.data.index import Arrays
from mcpmix.data.unlabelled import Unlabelled
from mcpmix.generator.judge import Floats, Judge, dice_of, load_judge

_ROWS = "rows.jsonl"
_MASKS = "masks.npy"
_BATCH = 64


def key(config: Config, unlabelled: Artifact, judge: Artifact) -> StageKey:
    """What the masks depend on."""
    inputs = {"unlabelled": unlabelled.digest, "judge": judge.digest}
    return StageKey("pseudo", config.pseudo.model_dump(mode="json"), inputs)


def run(
    config: Config,
    unlabelled: Artifact,
    judge: Artifact,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Mark all unlabelled images; a row for each says how well the networks agree and whether it is used."""
    stage_key = key(config, unlabelled, judge)
    if (finished := reuse(out, stage_key, progress)) is not None:
        return finished
    loaded, found = (
        load_judge(judge.folder, runtime.device, trust=config.synthesis.admission.judge.network),
        Unlabelled.read(unlabelled),
    )
    with workspace(out, stage_key) as space:
        log, marked = JsonLines(space.folder / _ROWS), []
        log.rewrite([])
        with progress.track("pseudo-masks", len(found.ids)) as advance:
            for start in range(0, len(found.ids), _BATCH):
                rows = slice(start, start + _BATCH)
                masks, agreement = mark(loaded, found.images[rows])
                marked.append(np.packbits(masks, axis=-1))
                for name, mask, value in zip(found.ids[rows], masks, agreement, strict=True):
                    used = bool(value >= config.pseudo.agreement and mask.any())
                    log.append(id=name, agreement=float(value), area=float(mask.mean()), used=used)
                advance(len(masks))
        with written(space.folder / _MASKS) as temporary, temporary.open("wb") as file:
            np.save(file, np.concatenate(marked))
        count = sum(row["used"] for row in log.rows())
        progress.say(f"pseudo: {count} of {len(found.ids)} unlabelled images get a mask that is used")
        return space.finish(images=len(found.ids), used=count)


def mark(judge: Judge, images: Pixels) -> tuple[Pixels, Floats]:
    """Masks B,S,S in {0, 1} by the mean of a judge's networks, and the mean Dice between each two of them."""
    answers = judge.answers(images)
    pairs = combinations(answers > 0.5, 2)
    agreement = np.mean([dice_of(one, other) for one, other in pairs], axis=0)
    return (answers.mean(axis=0) > 0.5).astype(np.uint8), agreement


def read_pseudo(pseudo: Artifact, found: Unlabelled) -> Arrays:
    """The images whose pseudo-masks are used, with these masks."""
    rows = JsonLines(pseudo / _ROWS).rows()
    chosen = [place for place, row in enumerate(rows) if row["used"]]
    masks = np.load(pseudo / _MASKS, mmap_mode="r")[chosen]
    masks = np.unpackbits(masks, axis=-1, count=found.images.shape[2])
    return Arrays(tuple(found.ids[place] for place in chosen), found.images[chosen], masks)
