"""The model card of a segmenter: what it was made of, how good it is, what it is not for.

Training writes it without scores; evaluation writes it once more into its own folder, with them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcpmix.config import Config
from mcpmix.core.stage_folder import write_text
from mcpmix.data.index import DatasetIndex
from mcpmix.data.splits import PARTS
from mcpmix.mixing.registry import strategy_needs_pairs
from mcpmix.networks.weight_files import KNOWN, licence_of

CARD = "README.md"
_NO_SCORES = """\
Not in this card: it was written before any test image was seen. `mcpmix evaluate` writes the same card with
the scores to `evaluation/ARM/seed-N/README.md` of the run. Pass that one on with this folder.
"""
_PIXELS = ("hd95", "assd")  # metrics in pixels; all others are in percent

_CARD = """\
---
library_name: mcpmix
pipeline_tag: image-segmentation
tags: [medical, lesion-segmentation, {name}]
---
# {name} {variant}, trained with {arm}, seed {seed}

Marks lesions in RGB images: one probability for each pixel. Trained at {size} x {size} pixels; takes images
of any size. Written by mcpmix; figures come from the run's own files.

## Intended use and limits

For research on segmentation with few annotated images. It is not a medical device: it has not been
shown to be safe or useful in the care of patients, and it must not be used for decisions about them.

- It knows only the images it was trained on (below). Test scores say nothing about other devices, hospitals,
  organs and kinds of lesion unless the test images came from there.
- It may mark something where there is no lesion, above all if all its training images showed one.
- Its probabilities are not calibrated.
- The checkpoint was chosen on the validation images, so the validation score is too good.

## Data

| part | images | groups (patients, lesions or sequences) | sources |
|---|---:|---:|---|
{parts}

Digest of ids, split and pixels (SHA-256): `{digest}`

## Training

- strategy `{arm}`, {train.epochs} + {train.tail_epochs} epochs, batches of
  {train.batch_size}, AdamW at {train.learning_rate:g}, weight decay {train.weight_decay:g}
- weights of epoch {best_epoch}, validation DSC {validation_dsc:.2f} %
- all settings: `manifest.json` in this folder

## Scores on the test images

{scores}
## Licences

The terms of the training images bind these weights too: see where the images came from.
Weights that training started from or used:

| for | weights | licence |
|---|---|---|
{licences}

## Use

```python
import numpy as np
import mcpmix
from PIL import Image

image = np.asarray(Image.open("image.png").convert("RGB"))
probability = mcpmix.load_segmenter("path/to/this/folder").predict(image)
```

`mcpmix predict FOLDER IMAGES --out MASKS` does the same for a folder of images;
`mcpmix export FOLDER --out model.onnx` writes a file that needs neither torch nor mcpmix.
"""


def write_card(folder: Path, config: Config, description: Mapping[str, Any], index: DatasetIndex) -> None:
    """Write the card of a segmenter that has just been trained; `description` is its config.json."""
    parts = []
    for part in PARTS:
        records = index.part(part)
        groups = {record.group for record in records}
        sources = ", ".join(sorted({record.source for record in records}))
        parts.append(f"| {part} | {len(records)} | {len(groups)} | {sources} |")

    weights = {"segmenter": config.segmenter.weights}
    if strategy_needs_pairs(description["arm"]):
        weights["generator of the counterparts"] = config.generator.base
        if config.finetune.start is not None:
            weights["start of the generator's ControlNet"] = config.finetune.start
        weights["depth, a condition of the generator"] = config.depth.model
    if description["arm"] == "mcpmix-rla":
        weights["features of RLA"] = config.rla.features
    licences = []
    for purpose, source in weights.items():
        if source is None:
            licences.append(f"| {purpose} | none: from scratch | – |")
        else:  # paths of this machine mean nothing elsewhere, and may name people
            shown = source if source in KNOWN else Path(source).name
            licences.append(f"| {purpose} | {shown} | {licence_of(source)} |")

    text = _CARD.format(
        **description,
        train=config.train,
        parts="\n".join(parts),
        digest=index.digest,
        scores=_NO_SCORES,
        licences="\n".join(licences),
    )
    write_text(folder / CARD, text)


def write_scored_card(
    folder: Path, segmenter: Path, summaries: Mapping[str, Mapping[str, Mapping[str, float]]]
) -> None:
    """Write the segmenter's card with its scores into another folder; a segmenter without one has none.

    Args:
        summaries: `test`, and `known` if there is such a part, to metric to `mean`, `sd`, `n` and `undefined`
            over images.
    """
    if not (segmenter / CARD).exists():
        return
    card = (segmenter / CARD).read_text(encoding="utf-8")
    if _NO_SCORES not in card:  # it was edited by hand
        card += f"\n## Scores on the test images\n\n{_NO_SCORES}"
    text = ""
    for part, summary in summaries.items():
        if part != "test":
            text += "\nOn new images of groups that training has seen:\n\n"
        text += "| metric | mean | sd over images | images |\n|---|---:|---:|---:|\n"
        for name, values in summary.items():
            unit = "px" if name in _PIXELS else "%"
            undefined = f" ({values['undefined']:.0f} undefined)" if values.get("undefined") else ""
            row = f"{values['mean']:.2f} | {values['sd']:.2f} | {values['n']:.0f}{undefined}"
            text += f"| {name} ({unit}) | {row} |\n"
    write_text(folder / CARD, card.replace(_NO_SCORES, text))
