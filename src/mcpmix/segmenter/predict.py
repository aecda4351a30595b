"""Masks for new images of any size: one image in memory, or a folder of them, resumable."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from mcpmix.core.device import setup
from mcpmix.core.errors import ConfigError, DataError, ModelError, StorageError, bullet_list
from mcpmix.core.files import digest_once, read_json, storage_errors, write_json
from mcpmix.core.pixels import Pixels, as_images, outline, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.training import JsonLines, one_ahead
from mcpmix.data.augment import normalise
from mcpmix.data.sample import has_alpha, named_images, read_image, resize_image
from mcpmix.networks.loss import probabilities
from mcpmix.networks.segmenter import load_network, read_description

_FLIPS: tuple[tuple[int, ...], ...] = ((), (3,), (2,), (2, 3))  # as it is, left-right, upside down, both
_EVEN = 0.5  # probability
_SETTINGS, _LOG = "prediction.json", "predictions.jsonl"
_COLOURS = ((90, 255, 120), (255, 200, 40), (80, 180, 255), (255, 110, 200), (255, 255, 255))  # of outlines


class Predictor:
    """A segmenter with its preprocessing.

    Args:
        network: from normalised B,3,S,S images to B,C,S,S logits.
        description: the segmenter's config.json; `size` is the side S it was trained at, `classes` has the
            names of the labels 1, 2, ... if there are several.
    """

    def __init__(
        self, network: nn.Module, description: dict[str, Any], device: torch.device | str = "cpu"
    ) -> None:
        self.network = network.to(device).eval()
        self.description = description
        self.size = int(description["size"])
        self.classes: tuple[str, ...] = tuple(description.get("classes", ()))
        self.device = device

    @torch.inference_mode()
    def predict(self, image: npt.NDArray[np.uint8], *, flips: bool = False) -> npt.NDArray[np.float32]:
        """Where the lesion is, at the image's own size.

        Args:
            image: (H, W, 3) RGB, of any size.
            flips: whether to average over the image and its three mirror images, at four times the cost.

        Returns:
            (H, W) probabilities of lesion; with several classes (C, H, W), one map for each label, background
            first, which sum to 1.

        Raises:
            DataError: the image has another shape or type; the message says how to convert it.
        """
        _require_rgb(image)
        small = normalise(as_images(resize_image(image, self.size)[None], self.device))
        views = _FLIPS if flips else _FLIPS[:1]
        # One after the other: a batch may take other kernels, and the first map must not depend on the rest.
        logits = torch.cat([self.network(small.flip(axes)).flip(axes) for axes in views])
        full = F.interpolate(logits.float(), image.shape[:2], mode="bilinear", align_corners=False)
        chances: npt.NDArray[np.float32] = probabilities(full).mean(dim=0).cpu().numpy()
        return chances if self.classes else chances[0]

    def mask(self, probabilities: npt.NDArray[np.float32], threshold: float = _EVEN) -> Pixels:
        """The (H, W) mask of what `predict` gave: lesion (1) from the threshold on, or the likeliest."""
        if self.classes:
            return probabilities.argmax(axis=0).astype(np.uint8)
        return (probabilities >= threshold).astype(np.uint8)

    def grey_levels(self, mask: Pixels) -> Pixels:
        """A mask as it is written to PNG: lesion is 255; several classes are their labels."""
        return mask if self.classes else mask * np.uint8(255)

    def fingerprint(self) -> str:
        """SHA-256 over the names and values of the weights, the same on every machine."""
        digest = hashlib.sha256()
        for name, value in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def _require_rgb(image: npt.NDArray[Any]) -> None:
    if image.ndim == 3 and image.shape[2] == 3 and image.dtype == np.uint8 and image.size:
        return
    hint = "Read files with mcpmix.data.sample.read_image."
    if image.ndim == 3 and image.shape[2] == 4:
        hint = "It has four channels: give the three of RGB, image[..., :3] if the fourth is opacity."
    elif image.ndim == 2:
        hint = "It is grey: repeat it, np.stack([image] * 3, axis=-1)."
    elif image.dtype == np.uint16:
        hint = "It has 16 bits: choose the range of levels to show and scale it to 0..255."
    elif np.issubdtype(image.dtype, np.floating):
        hint = "If its range is [0, 1]: (image * 255).round().astype(np.uint8)."
    raise DataError(f"predict expects an H,W,3 uint8 RGB image, got {image.dtype} {image.shape}. {hint}")


def load_segmenter(
    path: Path | str, device: torch.device | str = "cpu", *, trust: bool | str = False
) -> Predictor:
    """Load a segmenter from its folder (config.json and model.safetensors), or the best one of a run.

    Args:
        trust: whether the folder may name code to import; see `load_network`.

    Raises:
        ModelError: there is no segmenter, it is damaged, or it names code that is not trusted.
        StorageError: it is not what the training stage left there.
    """
    return Predictor(*load_network(segmenter_folder(Path(path)), trust), device=device)


def segmenter_folder(path: Path) -> Path:
    """The segmenter's own folder: `path` itself, or that of a run's best segmenter by validation DSC."""
    if (path / "model.safetensors").exists() or not (path / "segmenter").is_dir():
        return path
    found = sorted(file.parent for file in (path / "segmenter").glob("*/seed-*/model.safetensors"))
    finished = [folder for folder in found if not folder.name.endswith(".partial")]
    if not finished:
        raise ModelError(f"{path} has no finished segmenter yet: run `mcpmix run` or `mcpmix train`.")
    return max(finished, key=lambda folder: float(read_description(folder).get("validation_dsc", 0)))


# --- whole folders -----------------------------------------------------------------------------------------


def predict_files(
    segmenter: Path,
    images: Path,
    out: Path,
    *,
    threshold: float = _EVEN,
    probabilities: bool = False,
    overlay: bool = False,
    flips: bool = False,
    device: str = "auto",
    trust: bool = False,
    progress: Progress = SILENT,
) -> tuple[int, int]:
    """Segment images that have no result yet; results have the size of the upright image.

    A result is kept while the bytes of the image and of the result itself are those of before, as
    `predictions.jsonl` remembers them; times do not matter.

    Writes `masks/<name>.png` (8 bit, lesion = 255) and, where asked for, `probabilities/<name>.png` (16 bit,
    65535 = certain) and `overlays/<name>.png` (the image with the lesion's outline). With several classes
    the levels of masks are the labels, each class has its outline's colour and its own folder of
    probabilities, `probabilities/<class>/`, and the likeliest label is taken. Sub-folders of `images` are
    kept. Nothing of a source file but its pixels gets into a result.

    Args:
        segmenter: folder of a segmenter, or of a run, whose best segmenter is taken.
        threshold: probability in (0, 1) from which a pixel is lesion; not for several classes.
        flips: see `Predictor.predict`.
        trust: see `load_network`.

    Returns:
        The number of images that were segmented, and of those whose results were there already.

    Raises:
        ConfigError: the threshold is out of range, or the device does not exist.
        DataError: there are no images; or some cannot be read: all others are segmented first.
        ModelError: there is no segmenter.
        StorageError: `out` holds results of another segmenter, threshold or choice of flips, or the disk is
            full.
    """
    if not 0 < threshold < 1:
        raise ConfigError(f"threshold must be in (0, 1), got {threshold}.")
    if images.is_dir() and out.resolve().is_relative_to(images.resolve()):
        raise StorageError(
            f"{out} lies in the folder of images {images}, so a second call would segment its own masks. "
            "Choose a folder outside."
        )
    sources = named_images(images)
    folder = segmenter_folder(segmenter)
    chosen = setup(device, "float32", 0, deterministic=False).device
    predictor = load_segmenter(folder, chosen, trust=trust)
    if folder != segmenter:
        progress.say(f"segmenter: {folder}, the run's best on validation")
    maps = [f"probabilities/{name}" for name in predictor.classes] or ["probabilities"]
    kinds = ["masks"] + maps * probabilities + ["overlays"] * overlay
    plan = {path: {kind: out / kind / f"{name}.png" for kind in kinds} for name, path in sources.items()}
    problems: list[str] = []
    clear: list[str] = []
    with storage_errors(out):
        _claim(out, predictor, threshold, flips)
        log = JsonLines(out / _LOG)
        todo = _without_result(plan, out, log)
        writing: Future[None] | None = None

        def keep(path: Path, image: Pixels, chances: npt.NDArray[np.float32]) -> None:
            _write(image, chances, predictor.mask(chances, threshold), predictor, plan[path])
            log.append(**_record(path, plan[path], out))

        # While the network works on an image, the next one is read and the result before is written.
        with (
            progress.track("predict", len(plan), len(plan) - len(todo)) as advance,
            ThreadPoolExecutor(1, thread_name_prefix="results") as behind,
        ):
            for path, image in one_ahead(_pictures(todo, problems, clear)):
                if image is not None:
                    chances = predictor.predict(image, flips=flips)
                    if writing is not None:
                        writing.result()
                    writing = behind.submit(keep, path, image, chances)
                advance()
            if writing is not None:
                writing.result()
    if clear:
        few = ", ".join(clear[:3]) + (" ..." if len(clear) > 3 else "")
        who = "1 image has" if len(clear) == 1 else f"{len(clear)} images have"
        progress.say(f"{who} an alpha channel ({few}): composited over black, as in training")
    if problems:
        count = f"{len(problems)} of {len(plan)} images were not segmented; the others are in {out}:"
        raise DataError(bullet_list(count, problems))
    return len(todo), len(plan) - len(todo)


def _pictures(
    paths: Sequence[Path], problems: list[str], clear: list[str]
) -> Iterator[tuple[Path, Pixels | None]]:
    """Read images; what is wrong with some goes to `problems`, names of those with alpha to `clear`."""
    for path in paths:
        image = None
        try:
            image = read_image(path)
            clear += [path.name] if has_alpha(path) else []
        except DataError as error:
            problems.append(str(error))
        yield path, image


def _write(
    image: Pixels,
    chances: npt.NDArray[np.float32],
    mask: Pixels,
    predictor: Predictor,
    files: Mapping[str, Path],
) -> None:
    """Write the results of an image, the mask last."""
    if maps := [file for kind, file in files.items() if kind.startswith("probabilities")]:
        levels = np.round(chances * 65535).astype(np.uint16)
        for file, level in zip(maps, levels[1:] if predictor.classes else [levels], strict=True):
            write_png(file, level)
    if "overlays" in files:
        write_png(files["overlays"], outlined(image, mask))
    write_png(files["masks"], predictor.grey_levels(mask))


def _record(path: Path, files: Mapping[str, Path], out: Path) -> dict[str, Any]:
    """The digests of an image and of its results."""
    return {
        "image": digest_once(path),
        "results": {file.relative_to(out).as_posix(): digest_once(file) for file in files.values()},
    }


def _without_result(plan: Mapping[Path, Mapping[str, Path]], out: Path, log: JsonLines) -> list[Path]:
    """The images that have to be segmented."""
    known: dict[str, tuple[str, str]] = {}  # digests of image and result, by the name of the result
    for row in log.rows():
        if isinstance(row, dict) and isinstance(row.get("results"), dict):
            known |= {name: (str(row.get("image")), str(made)) for name, made in row["results"].items()}

    def is_done(path: Path, files: Mapping[str, Path]) -> bool:
        if not all(file.is_file() for file in files.values()):
            return False
        now = _record(path, files, out)
        return all(known.get(name) == (now["image"], made) for name, made in now["results"].items())

    return [path for path, files in plan.items() if not is_done(path, files)]


def _claim(out: Path, predictor: Predictor, threshold: float, flips: bool) -> None:
    """Record which segmenter and settings made the results; refuse to mix them with others."""
    if predictor.classes and threshold != _EVEN:
        raise ConfigError(
            f"threshold is {threshold}, but the segmenter tells {', '.join(predictor.classes)} apart and "
            "takes the likeliest. Leave the threshold out."
        )
    file = out / _SETTINGS
    decisive = {"weights": predictor.fingerprint(), "threshold": threshold, "flips": flips}
    if not file.exists():
        out.mkdir(parents=True, exist_ok=True)
        known = {
            name: value
            for name, value in predictor.description.items()
            if name in ("arm", "seed", "size", "classes")
        }
        write_json(file, {**decisive, **known})
        return
    try:
        there = read_json(file)
        differ = [name for name, value in decisive.items() if there.get(name) != value]
    except (OSError, ValueError, AttributeError):
        differ = [_SETTINGS]
    if differ:
        raise StorageError(
            f"{out} holds results of another call (not the same: {', '.join(differ)}). Choose another "
            "folder, or delete this one."
        )


def outlined(image: Pixels, mask: Pixels) -> Pixels:
    """The (H, W, 3) image with an outline just outside each label, a 256th of the shorter side wide."""
    picture = image.copy()
    for label in range(1, int(mask.max()) + 1):
        inside = mask == label
        grown = inside
        for _ in range(max(1, min(mask.shape) // 256)):
            grown = grown | outline(grown, outside=True)
        picture[grown & ~inside] = _COLOURS[(label - 1) % len(_COLOURS)]
    return picture
