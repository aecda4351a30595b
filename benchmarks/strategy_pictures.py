"""A picture and a section of docs/baselines.md for each strategy: what it does to image and mask.

    python benchmarks/strategy_pictures.py            # pictures and page
    python benchmarks/strategy_pictures.py --page     # the page only
    python benchmarks/strategy_pictures.py --check    # whether the page is up to date

Frames are those of the phantom. The counterpart of the paired strategies is a stand-in: the same frame with
the colours of another patient, as the generator would make it under the same mask. So are pseudo-masks, the
answers of a teacher (the phantom's own masks, for the teacher blurred) and the images of generative baselines
(frames of other patients); the real ones are in `sheet.png` of their folders.
"""

import argparse
import inspect
import re
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional as F

from _markers import fill
from mcpmix import phantom
from mcpmix.core.seeds import torch_rng
from mcpmix.data.augment import denormalise, normalise
from mcpmix.mixing.hsmix import centre_surround
from mcpmix.mixing.registry import (
    STRATEGIES,
    build_strategy,
    strategy_needs_pairs,
    strategy_needs_set,
    unlabelled_source,
)
from mcpmix.mixing.strategy import Batch, Originals, Strategy, Term
from mcpmix.report.arms import label_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "baselines.md"
FOLDER = ROOT / "docs" / "images" / "strategies"
SIDE, GAP, CAPTION, COLOURS = 128, 4, 14, 256
PATIENTS = (3, 8)  # of the phantom's world 5: lesions that overlap in part
UNLABELLED = (11, 14)  # patients of the same world
SYNTHETIC = (17, 20)  # likewise
SETTINGS: dict[str, dict[str, object]] = {
    "mcpmix-rla": {"epochs": 10, "mu": 0.0},
    "mcpmix-stepwise": {"epochs": 10},
    "mcpmix-cosine": {"epochs": 10},
}
ALONE = ("full-sup", "full-sup-strong", "augmix", "pixmix")  # need no other image
VISIBLE = (0.35, 0.7)  # share of the own image that shows both


def make_batch() -> Batch:
    """Two frames, their masks, stand-ins for their counterparts, two more as unlabelled images, and a set."""
    images, masks = frames_of(PATIENTS)
    names = tuple(f"patient-{patient}" for patient in PATIENTS)
    whole = Originals(lambda: images, lambda maps: maps)
    counterparts, labelled_set = recoloured(images, images.flip(0)), frames_of(SYNTHETIC)
    return Batch(images, masks, counterparts, names, whole, *frames_of(UNLABELLED), labelled_set)


def frames_of(patients: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Images (B, 3, H, W), normalised, and masks (B, 1, H, W) of the first frames of some patients."""
    frames = [phantom.render(5, patient, 0, SIDE) for patient in patients]
    pixels = torch.stack([torch.from_numpy(np.array(frame.image)) for frame in frames])
    masks = torch.stack([torch.from_numpy(np.array(frame.mask)) for frame in frames])
    return normalise(pixels.permute(0, 3, 1, 2).float() / 255), masks[:, None].float()


def recoloured(images: Tensor, like: Tensor) -> Tensor:
    """Images with mean and deviation of each channel of other images, within the range of pixels."""
    mean, std = images.mean((2, 3), keepdim=True), images.std((2, 3), keepdim=True)
    new_mean, new_std = like.mean((2, 3), keepdim=True), like.std((2, 3), keepdim=True)
    return normalise(denormalise((images - mean) / std * new_std + new_mean).clamp(0, 1))


def saliency(images: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG001
    """Stands for the gradient of a trained network, which PuzzleMix asks for."""
    return centre_surround(denormalise(images).clamp(0, 1)).expand_as(images)


class Teacher(nn.Module):
    """Stands for a network that has learnt: it finds blurred masks in the unlabelled images."""

    def __init__(self, masks: Tensor) -> None:
        super().__init__()
        soft = F.avg_pool2d(masks, 13, stride=1, padding=6, count_include_pad=False)
        self.register_buffer("answer", torch.logit(soft, eps=0.02))

    def forward(self, images: Tensor) -> Tensor:  # noqa: ARG002
        """Logits (B, 1, H, W)."""
        return self.get_buffer("answer")


def telling_terms(strategy: Strategy, batch: Batch) -> list[Term]:
    """Terms of a draw in which the first image visibly changed."""
    strategy.attach(saliency, Teacher(batch.more()[1]))
    strategy.prepare([batch])
    strategy.set_epoch(1)
    for number in range(200):
        terms = strategy.terms(batch, torch_rng("picture", number))
        share = strategy.log().get("own_share", 0.5)
        changed = not torch.allclose(terms[-1].images[0], batch.images[0]) or len(terms[-1].images) > 2
        if changed and VISIBLE[0] <= share <= VISIBLE[1]:
            return terms
    return terms


def tiles(name: str, batch: Batch) -> list[tuple[str, Tensor, Tensor]]:
    """Caption, image (3, H, W) and target (1, H, W) of each column."""
    terms = telling_terms(build_strategy(name, **SETTINGS.get(name, {})), batch)
    first = [("image", batch.images[0], batch.masks[0])]
    source = unlabelled_source(name)
    if strategy_needs_pairs(name):
        first.append(("stand-in counterpart", batch.pairs()[0], batch.masks[0]))
    if source:
        unlabelled, masks = batch.more()
        known = masks[0] if source == "pseudo-masks" else torch.full_like(masks[0], 0.5)  # grey: not known
        first.append(("unlabelled image", unlabelled[0], known))
    elif strategy_needs_set(name):
        synthetic, masks = batch.with_own_masks()
        first.append(("stand-in image", synthetic[0], masks[0]))
    elif not strategy_needs_pairs(name) and name not in ALONE:
        first.append(("partner", batch.images[1], batch.masks[1]))
    shown = [
        (f"trained on: {term.name}", term.images[place], term.targets[place])
        for term in terms
        for place in ([0, len(batch.ids)] if len(term.images) > len(batch.ids) else [0])
    ]
    return first + shown


def picture(name: str, batch: Batch) -> Image.Image:
    """Images above their targets, with captions."""
    columns = tiles(name, batch)
    width = len(columns) * (SIDE + GAP) - GAP
    sheet = Image.new("RGB", (width, CAPTION + 2 * SIDE + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for place, (caption, image, target) in enumerate(columns):
        left = place * (SIDE + GAP)
        pen.text((left, 0), caption, fill="black")
        pixels = (denormalise(image[None])[0].clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
        grey = (target[0] * 255).round().byte().numpy()
        sheet.paste(Image.fromarray(pixels), (left, CAPTION))
        sheet.paste(Image.fromarray(grey), (left, CAPTION + SIDE + GAP))
    return sheet.quantize(COLOURS, dither=Image.Dither.NONE)


def section(name: str) -> str:
    """What it does, its settings, their search range and its cost, from the class itself."""
    text = (inspect.getdoc(STRATEGIES[name]) or "").partition("\nArgs:")[0]
    about = " ".join(text.partition("Cost:")[0].split())
    cost = re.search(r"Cost:(.*?)(?:\n\n|$)", text, re.DOTALL)
    lines = [f"### {label_of(name)}", "", f"`{name}`: {about}", ""]
    if cost:
        price = " ".join(cost[1].split())
        lines += [f"**Cost.** {price[0].upper()}{price[1:]}", ""]
    lines += settings_table(name)
    return "\n".join([*lines, f"![{label_of(name)}](images/strategies/{name}.png)"])


def settings_table(name: str) -> list[str]:
    """Settings, defaults and ranges; those of the learnt gates are described elsewhere."""
    if name == "mcpmix-rla":
        return ["Its settings are those of the section `rla`: see [RLA](rla.md).", ""]
    parameters = inspect.signature(STRATEGIES[name]).parameters
    search = STRATEGIES[name].search
    rows = [
        f"| `{key}` | {show(value.default)} | {', '.join(map(show, search.get(key, ()))) or '–'} |"
        for key, value in parameters.items()
        if key != "epochs"
    ]
    return ["| setting | default | search range |", "|---|---|---|", *rows, ""] if rows else []


def show(value: object) -> str:
    """A value as YAML has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, float):
        return f"{value:.3g}"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def main() -> None:
    """Draw and write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", action="store_true", help="the page only")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if the page is out of date"
    )
    options = parser.parse_args()
    text = "\n\n".join(section(name) for name in STRATEGIES)
    if options.check:
        if f"\n{text}\n" not in PAGE.read_text(encoding="utf-8"):
            sys.exit("docs/baselines.md is out of date: run python benchmarks/strategy_pictures.py --page")
        return
    fill(PAGE, "strategies", text)
    if not options.page:
        FOLDER.mkdir(parents=True, exist_ok=True)
        batch = make_batch()
        for name in STRATEGIES:
            picture(name, batch).save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
