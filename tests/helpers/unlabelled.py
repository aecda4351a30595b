"""Unlabelled images and pseudo-masks in the folders that their stages leave, made by hand."""

import numpy as np

from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.core.training import JsonLines
from mcpmix.data.leakage import SeenImage, look_of, write_seen
from mcpmix.data.sample import pixel_digest
from mcpmix.phantom import render


def store_unlabelled(folder, images, names):
    """The artefact of N,S,S,3 images with these names."""
    seen = [SeenImage(name, pixel_digest(x), look_of(x)) for name, x in zip(names, images, strict=True)]
    with workspace(folder, StageKey("unlabelled", {"images": [image.sha256 for image in seen]})) as space:
        (space.folder / "pixels.u8").write_bytes(images.tobytes())
        write_seen(space.folder, seen, private=True)
        places = {"place_names": ["frames"], "place_of": [0] * len(images)}
        return space.finish(images=len(images), size=images.shape[1], **places)


def store_pseudo(folder, masks, used):
    """The artefact of N,S,S masks, of which some are used."""
    with workspace(folder, StageKey("pseudo", {"used": used, "masks": masks.tobytes().hex()})) as space:
        log = JsonLines(space.folder / "rows.jsonl")
        for number, chosen in enumerate(used):
            log.append(id=f"frame-{number}", agreement=1.0, area=float(masks[number].mean()), used=chosen)
        np.save(space.folder / "masks.npy", np.packbits(masks, axis=-1))
        return space.finish(images=len(masks), used=sum(used))


def store_frames(folder, used, size=64):
    """Phantom frames of other patients than those of a run, with their masks: both artefacts."""
    frames = [render(7, patient, 0, size) for patient in range(len(used))]
    images, masks = (np.stack([getattr(frame, part) for frame in frames]) for part in ("image", "mask"))
    names = [f"unlabelled/0/{number}.png" for number in range(len(used))]
    return store_unlabelled(folder / "unlabelled", images, names), store_pseudo(
        folder / "pseudo", masks, used
    )
