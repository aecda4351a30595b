"""The model card of a segmenter: what it was made of, how good it is, what it is not for.

Training writes it without scores; evaluation writes it once more into its own folder, with them.
"""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from mcpmix.config import Config
from mcpmix.core.files import write_text
from mcpmix.data.index import DatasetIndex
from mcpmix.data.splits import PARTS
from mcpmix.mixing.registry import strategy_needs_pairs, strategy_needs_set
from mcpmix.networks.weight_files import KNOWN, licence_of

CARD = "README.md"
_NO_SCORES = """\
Not in this card: it was written before any test image was seen. `mcpmix evaluate` writes the same card with
the scores to `evaluation/ARM/seed-N/README.md` of the run. Pass that one on with this folder.
"""
_GUESSED = """

**The groups were guessed from pictures, not recorded.** If one patient or video is in two of them, the scores
below are too good."""
_PIXELS = ("hd95", "assd")  # metrics in pixels; all others are in percent


def write_card(
    folder: Path,
    config: Config,
    description: Mapping[str, Any],
    index: DatasetIndex,
    *,
    guessed: bool = False,
) -> None:
    """Write the card of a segmenter that has just been trained.

    Args:
        description: its config.json.
        guessed: whether groups were guessed from pictures.
    """
    parts = []
    for part in PARTS:
        records = index.part(part)
        groups = {record.group for record in records}
        sources = ", ".join(sorted({record.source for record in records}))
        parts.append(f"| {part} | {len(records)} | {len(groups)} | {sources} |")

    weights = {"segmenter": config.segmenter.weights}
    if strategy_needs_pairs(description["arm"]):
        weights["generator of the counterparts"] = config.generator.base
        if config.finetune.start_weights is not None:
            weights["start of the generator's ControlNet"] = config.finetune.start_weights
        if config.few_steps.lora is not None:
            weights["LoRA by which the generator draws in few steps"] = config.few_steps.lora
        weights["depth, a condition of the generator"] = config.depth.model
    if strategy_needs_set(description["arm"]):
        weights["base of the synthetic images"] = config.generator.base
    if description["arm"] == "mcpmix-rla":
        weights["features of RLA"] = config.rla.features
    licences = []
    for purpose, source in weights.items():
        if source is None:
            licences.append(f"| {purpose} | none: from scratch | – |")
        else:  # paths of this machine mean nothing elsewhere, and may name people
            shown = source if source in KNOWN else Path(source).name
            licences.append(f"| {purpose} | {shown} | {licence_of(source)} |")

    template = (resources.files(__package__) / "model_card.md").read_text(encoding="utf-8")
    output, labels = "one probability for each pixel", ("background", *config.data.classes)
    if config.data.classes:
        output = f"for each pixel one probability of each label, {', '.join(labels)}"
    text = template.format(
        **description,
        output=output,
        train=config.train,
        parts="\n".join(parts) + (_GUESSED if guessed else ""),
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
