"""The model card of a segmenter: what it was made of, how good it is, what it is not for.

Training writes it without scores; evaluation writes it once more into its own folder, with them.
"""

from collections.abc import Iterator, Mapping
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

_HEAD = """\
---
library_name: mcpmix
pipeline_tag: image-segmentation
tags: [medical, lesion-segmentation, {name}]
---
# {name} {variant}, trained with {arm}, seed {seed}

Marks lesions in RGB images: one probability for each pixel. Trained at {size} x {size} pixels; takes images
of any size. Written by mcpmix; figures come from the run's own files.
"""

_USE = """\
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

_LIMITS = """\
## Intended use and limits

For research on segmentation with few annotated images. It is not a medical device: it has not been
shown to be safe or useful in the care of patients, and it must not be used for decisions about them.

- It knows only the images it was trained on (below). Test scores say nothing about other devices, hospitals,
  organs and kinds of lesion unless the test images came from there.
- It may mark something where there is no lesion, above all if all its training images showed one.
- Its probabilities are not calibrated.
- The checkpoint was chosen on the validation images, so the validation score is too good.
"""


def write_card(folder: Path, config: Config, description: Mapping[str, Any], index: DatasetIndex) -> None:
    """Write the card of a segmenter that has just been trained; `description` is its config.json."""
    sections = (
        _HEAD.format(**description),
        _LIMITS,
        "\n".join(_data(index)),
        "\n".join(_training(config, description)),
        f"## Scores on the test images\n\n{_NO_SCORES}",
        "\n".join(_licences(config, str(description["arm"]))),
        _USE,
    )
    write_text(folder / CARD, "\n".join(sections))


def write_scored_card(folder: Path, segmenter: Path, summary: Mapping[str, Mapping[str, float]]) -> None:
    """Write the segmenter's card with its scores into another folder; a segmenter without one has none.

    Args:
        summary: metric to `mean`, `sd`, `n` and `undefined` over images.
    """
    if not (segmenter / CARD).exists():
        return
    card = (segmenter / CARD).read_text(encoding="utf-8")
    if _NO_SCORES not in card:  # it was edited by hand
        card += f"\n## Scores on the test images\n\n{_NO_SCORES}"
    write_text(folder / CARD, card.replace(_NO_SCORES, "\n".join(_scores(summary)) + "\n"))


def _data(index: DatasetIndex) -> Iterator[str]:
    yield "## Data\n"
    yield "| part | images | groups (patients, lesions or sequences) | sources |"
    yield "|---|---:|---:|---|"
    for part in PARTS:
        records = index.part(part)
        groups = {record.group for record in records}
        sources = ", ".join(sorted({record.source for record in records}))
        yield f"| {part} | {len(records)} | {len(groups)} | {sources} |"
    yield f"\nDigest of ids, split and pixels (SHA-256): `{index.digest}`\n"


def _training(config: Config, description: Mapping[str, Any]) -> Iterator[str]:
    train, score = config.train, description["validation_dsc"]
    yield "## Training\n"
    yield f"- strategy `{description['arm']}`, {train.epochs} + {train.tail_epochs} epochs, batches of "
    yield f"  {train.batch_size}, AdamW at {train.learning_rate:g}, weight decay {train.weight_decay:g}"
    yield f"- weights of epoch {description['best_epoch']}, validation DSC {score:.2f} %"
    yield "- all settings: `manifest.json` in this folder\n"


def _scores(summary: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    yield "| metric | mean | sd over images | images |"
    yield "|---|---:|---:|---:|"
    for name, values in summary.items():
        unit = "px" if name in _PIXELS else "%"
        undefined = f" ({values['undefined']:.0f} undefined)" if values.get("undefined") else ""
        row = f"{values['mean']:.2f} | {values['sd']:.2f} | {values['n']:.0f}{undefined}"
        yield f"| {name} ({unit}) | {row} |"


def _licences(config: Config, arm: str) -> Iterator[str]:
    yield "## Licences\n"
    yield "The terms of the training images bind these weights too: see where the images came from."
    yield "Weights that training started from or used:\n"
    yield "| for | weights | licence |"
    yield "|---|---|---|"
    start = config.segmenter.weights
    yield "| segmenter | none: from scratch | – |" if start is None else _licence("segmenter", start)
    if strategy_needs_pairs(arm):
        yield _licence("generator of the counterparts", config.generator.base)
        if config.finetune.start is not None:
            yield _licence("start of the generator's ControlNet", config.finetune.start)
        yield _licence("depth, a condition of the generator", config.depth.model)
    if arm == "mcpmix-rla":
        yield _licence("features of RLA", config.rla.features)
    yield ""


def _licence(purpose: str, source: str) -> str:
    # Paths of this machine mean nothing elsewhere, and may name people.
    shown = source if source in KNOWN else Path(source).name
    return f"| {purpose} | {shown} | {licence_of(source)} |"
