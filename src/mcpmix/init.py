"""Where a user starts: `mcpmix init` for own images, `mcpmix data phantom` for a folder to practise on."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from pydantic import BaseModel

from mcpmix import phantom
from mcpmix.config import PSEUDO, Config
from mcpmix.config_file import preset_names, resolve_config
from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.files import new_folder, read_json, storage_errors, write_json, write_text
from mcpmix.core.pixels import outline, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data import public_sets as catalog
from mcpmix.data.archives import folder_of
from mcpmix.data.dataset import FOLDER, load_collection
from mcpmix.data.layouts import GIVEN, GROUPS, MANIFESTS, METADATA, Collection, scan_folder
from mcpmix.data.phantom_set import world_seed, write_phantom_set
from mcpmix.data.sample import likely_mistake, read_image
from mcpmix.data.splits import PARTS
from mcpmix.data.tables import write_csv
from mcpmix.networks.weight_files import EMBEDDED, is_present, licence_of
from mcpmix.phantom.scene import MUCOSA

_MOST_STEPS_UP = 3  # `../../../data` is still easier to read than an absolute path; more is not
_SHEET_GAP, _SHEET_CONTOUR = 2, (90, 255, 120)  # pixels between frames, and a colour unlike any mucosa
_TELLING_FILES = {
    "nnunet": ("dataset.json",),
    "imagefolder": tuple(f"{place}{name}" for place in ("", "train/") for name in METADATA),
    "manifest": MANIFESTS,
    FOLDER: ("images",),
}
# What people change first. All other settings stay as the preset has them.
_MAIN_SETTINGS: dict[str, tuple[str, ...]] = {
    "": ("name", "seed", "output"),
    "data.": ("source", "root", "images", "masks", "groups", "unlabelled", "size"),
    "data.split.": ("file", "method", "validation", "test"),
    "depth.": ("model",),
    "generator.": ("base",),
    "generator.prompt.": ("template", "position", "target"),
    "adapt.": ("steps", "looks", "autoencoder_steps", "decoder_steps"),
    "finetune.": ("start", "steps", "batch_size"),
    "synthesis.": ("replicas", "steps", "appearance", "source"),
    "segmenter.": ("name", "variant", "weights"),
    "train.": ("arms", "seeds", "epochs", "batch_size", "learning_rate"),
    "rla.": ("controller", "features"),
    "runtime.": ("device", "precision", "jobs"),
}

_BY_MACHINE = {True: "small", False: "tiny"}  # whether there is a GPU, to a preset that it can run
_COLOURED = 64  # images whose colours are looked at
_GAMMA, _DARK = 2.2, 0.02  # of screens; level below which a pixel is the black around the view
_RARE = 0.02  # share of the images below which a colour is an accident
_ADAPT = {"steps": 4000, "looks": 16}  # where there are unlabelled images
_ADAPT_EMBEDDED = {"autoencoder_steps": 1500, "decoder_steps": 700}


# --- own images --------------------------------------------------------------------------------------------


def write_starter_config(
    folder: Path,
    *,
    images: Path | None,
    masks: Path | None,
    groups: Path | None,
    unlabelled: Sequence[Path],
    source: str | None,
    root: Path | None,
    preset: str | None,
    force: bool,
    progress: Progress,
) -> tuple[Path, list[str], DataError | None]:
    """Look at a data set and write `folder/mcpmix.yaml`, with a comment for each main setting.

    Args:
        images: folder of images, for the source `folder`, as are `masks` and `groups`, a CSV of id and group.
        unlabelled: folders or archives of images without masks, which the generator learns from.
        source: a layout or a name of the catalogue; by default recognised from `root`.
        root: where the data is, for the other sources. If a split comes with it, it is used.
        preset: where the settings come from, by default `small` with a GPU and `tiny` without; a data set of
            the catalogue adds its own, and images that are named like those of one take its prompt.

    Returns:
        The file; what was found in the folders and which weights it needs, a line each; and the problem of
        single files, if there is one: it is for `mcpmix check`, which can mend it.
    """
    file = folder / "mcpmix.yaml"
    if file.exists() and not force:
        raise StorageError(f"{file} exists. Choose another folder, or replace it with --force.")
    home = Path(os.path.realpath(folder))
    if source is None:
        source = find_source(root, progress) if root is not None else FOLDER
    if source == FOLDER and root is not None:  # a folder with `images/` and `masks/`; what was named stays
        place, root = folder_of(root), None
        images, masks = images or place / "images", masks or place / "masks"
        groups = groups or (place / GROUPS if (place / GROUPS).is_file() else None)
    places = {"root": root, "images": images, "masks": masks, "groups": groups}
    known = source in catalog.entries()
    fast = torch.cuda.is_available() or torch.backends.mps.is_available()
    own = [source] if known and source in preset_names() else []  # which starts from `small` by itself
    presets = [preset, *own] if preset is not None else own if own and fast else [_BY_MACHINE[fast], *own]
    tree: dict[str, Any] = {
        "preset": presets,
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", home.name).lstrip("._-") or "run",
        "data": {"source": source, **{name: _path_for(path, home) for name, path in places.items() if path}},
    }
    if unlabelled:
        tree["data"]["unlabelled"] = [_path_for(path, home) for path in unlabelled]
        embedded = resolve_config(tree).generator.base == EMBEDDED  # it knows phantoms only
        tree["adapt"] = _ADAPT | (_ADAPT_EMBEDDED if embedded else {})
        tree["finetune"] = {"start": PSEUDO}
    resolve_config(tree)  # refuses an unknown preset before anything is read
    collection, problem = _look_at(source, places, progress)
    if GIVEN in collection.splits:
        tree["data"]["split"] = {"method": GIVEN}
    alike = None if known else catalog.recognise_names(sample.image.stem for sample in collection.samples)
    if alike in preset_names():
        prompt = resolve_config({"preset": alike, "data": {"root": "."}}).generator.prompt
        tree["generator"] = {"prompt": prompt.model_dump()}
    words = _own_words(resolve_config(tree), collection)
    if words:
        tree["synthesis"] = {"appearance": words}
    config = resolve_config(tree)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(file, commented_yaml(config, *presets))
    findings = [f"source: {source}", *_findings(collection, config)]
    if preset is None:
        there = f"{_BY_MACHINE[fast]}, because this machine has {'a' if fast else 'no'} GPU"
        findings.append(f"preset: {there}; --preset takes another, and `mcpmix check` says how long it takes")
    if words:
        findings.append(f"counterparts take the colours that these images have: {', '.join(words)}")
    if "generator" in tree:
        findings.append(f"images are named like those of {alike}, so its prompt is used")
    return file, [*findings, f"prompt: {config.generator.prompt.text}"], problem


def _look_at(
    source: str, places: Mapping[str, Any], progress: Progress
) -> tuple[Collection, DataError | None]:
    """The data set, and the problem of single files, without which it is read then."""
    images, masks = places["images"], places["masks"]
    try:
        collection, problem = load_collection(source, **places, progress=progress), None
    except DataError as error:
        if not (images is not None and images.is_dir() and masks is not None and masks.is_dir()):
            raise
        problem = error
        # Without the table of groups: its mistakes are told, and must not hide what the folders hold.
        collection = scan_folder(images, masks, left_out=[])
    if swapped := likely_mistake([(sample.image, sample.mask) for sample in collection.samples]):
        raise problem or DataError(swapped.strip())
    return collection, problem


def find_source(root: Path, progress: Progress) -> str:
    """What kind of data set a folder, a list (CSV, TSV or JSONL) or an archive holds, by layout and names."""
    place = folder_of(root, progress)
    if place.is_file():
        return "manifest"
    known = catalog.recognise(place) if place.is_dir() else None
    if known is not None:
        return known
    for source, files in _TELLING_FILES.items():
        if any((place / name).exists() for name in files):
            return source
    raise DataError(
        f"{root}: the layout is not known. Expected {', '.join(_TELLING_FILES)}, or a data set of `mcpmix "
        "data list`: see docs/data.md, or name the layout with --source. Own folders of images and masks are "
        "named one by one: --images DIR --masks DIR."
    )


def commented_yaml(config: Config, *presets: str) -> str:
    """The main settings of a configuration as YAML, each with what the schema says about it.

    All others come from the presets; of several, from the last that has them.
    """
    start = presets[0] if len(presets) == 1 else f"[{', '.join(presets)}]"
    lines = [
        f"# Settings of a run. Those that are not here are as in the preset `{start}`; `mcpmix run` writes",
        "# all of them to config.yaml in the folder of the run. Paths are relative to this file.",
        "",
        f"preset: {start}",
        *_commented(config),
    ]
    return "\n".join(lines) + "\n"


def _commented(section: BaseModel, path: str = "", indent: str = "") -> Iterator[str]:
    for name, info in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            inner = list(_commented(value, f"{path}{name}.", f"{indent}  "))
            if inner and not indent:
                yield from ("", f"# {(type(value).__doc__ or '').splitlines()[0]}")
            yield from [f"{indent}{name}:", *inner] if inner else []
        elif name in _MAIN_SETTINGS.get(path, ()):
            yield from (f"{indent}# {line.strip()}" for line in (info.description or "").splitlines())
            plain = section.model_dump(mode="json", include={name})
            flow = None if isinstance(value, tuple) else False
            text = yaml.safe_dump(plain, default_flow_style=flow, allow_unicode=True, width=10**6)
            yield indent + text.rstrip()


def _path_for(path: Path, home: Path) -> str:
    """A path as it goes into a configuration in `home`: relative while that is easy to read."""
    absolute = os.path.abspath(path.expanduser())  # noqa: PTH100 (links stay what the user named)
    try:
        relative = Path(os.path.relpath(absolute, home))
    except ValueError:  # another drive
        return absolute
    return relative.as_posix() if relative.parts.count("..") <= _MOST_STEPS_UP else absolute


def _findings(collection: Collection, config: Config) -> Iterator[str]:
    samples = collection.samples
    if config.data.source == FOLDER:
        sizes = Counter(_size(sample.image) for sample in samples)
        (width, height), _ = sizes.most_common(1)[0]
        text = f"{width} x {height} pixels"
        others = f"mostly {text} and {len(sizes) - 1} other sizes"
        yield f"{len(samples)} images with masks, {text if len(sizes) == 1 else others}"
        endings = Counter(sample.mask.stem[len(sample.id) :].lower() for sample in samples)
        names = [f"IMAGE{ending}" if ending else "like their images" for ending, _ in endings.most_common()]
        yield f"masks are named {' or '.join(names)}"
    else:
        yield f"{len(samples)} images with masks; `mcpmix check` looks into them"
    if collection.grouped:
        groups = len({sample.group for sample in samples})
        yield f"{groups} groups ({collection.grouped}), which the split keeps whole"
    elif config.data.groups is None:  # a table that was refused is among the problems
        yield "each image is its own group; give --groups if several show one patient, or scores are too good"
    for name in collection.splits:
        leaks = f"; it leaks: {collection.leaks[name]}" if name in collection.leaks else ""
        chosen = ", used" if name == config.data.split.method else ""
        yield f"comes with the split {name}{chosen}{leaks}"
    weights = {
        "pipeline": config.generator.base,
        "control": config.finetune.start_weights,
        "depth": config.depth.model,
    }
    here = {part: is_present(source, part) for part, source in weights.items() if source is not None}
    for part, present in here.items():
        place = "on this machine" if present else "not on this machine"
        yield f"{part} weights: {weights[part]}, {place}; licence: {licence_of(str(weights[part]))}"
    if not all(here.values()):
        yield "`mcpmix check` says how to get them; --preset tiny needs none of them, and no GPU"


def _own_words(config: Config, collection: Collection) -> list[str]:
    """Of the appearances that the embedded base knows by name, those whose colour some of the images have.

    Its words are for phantoms, of which some are green or blue; empty where none are configured.
    """
    wall = {f"{name} mucosa": np.array(colour) for name, (colour, _) in MUCOSA.items()}
    words = [word for word in config.synthesis.appearance if word in wall]
    if len(words) < len(config.synthesis.appearance) or config.generator.base != EMBEDDED or not words:
        return []
    palette = np.stack([wall[word] / wall[word].sum() for word in words])
    step = max(1, len(collection.samples) // _COLOURED)
    votes: Counter[str] = Counter()
    for sample in collection.samples[::step]:
        with suppress(DataError):
            light = (read_image(sample.image) / 255.0) ** _GAMMA  # linear, as reflectances are
            mean = (
                light[light.max(axis=2) > _DARK].mean(axis=0) if light.max() > _DARK else light.mean((0, 1))
            )
            votes[words[int(np.square(palette - mean / max(mean.sum(), 1e-9)).sum(axis=1).argmin())]] += 1
    return [word for word in words if votes[word] > _RARE * votes.total()]


def _size(file: Path) -> tuple[int, int]:
    with Image.open(file) as image:
        return image.size


# --- phantom -----------------------------------------------------------------------------------------------


def write_phantom_folder(
    out: Path, *, patients: int, frames: int, seed: int, size: int, progress: Progress = SILENT
) -> None:
    """Draw a labelled phantom set: `images/`, `masks/` and `groups.csv`; a killed call can be repeated.

    Args:
        frames: of each patient.
        seed: another one gives other patients.
        size: side of a frame in pixels.
    """
    settings = {"patients": patients, "frames": frames, "seed": seed, "size": size}
    marker = out / "phantom.json"
    if not marker.exists():
        write_json(new_folder(out) / marker.name, settings)
    elif read_json(marker) != settings:  # frames that are there are kept
        raise StorageError(f"{out} holds another phantom set ({marker.name}). Choose another folder.")
    with storage_errors(out):
        samples, _ = write_phantom_set(
            out,
            train_patients=patients,
            validation_patients=0,
            test_patients=0,
            frames_per_patient=frames,
            test_frames_per_patient=0,
            seed=seed,
            size=size,
            progress=progress,
        )
        write_csv(out / GROUPS, [{"id": item.id, "group": item.group} for item in samples])


def write_phantom_sheet(
    file: Path, *, patients: int, frames: int, seed: int, size: int, progress: Progress = SILENT
) -> None:
    """Draw the frames of `write_phantom_folder` with outlines of their lesions into one PNG, a row each."""
    world, step = world_seed(seed), size + _SHEET_GAP
    sheet = np.full((patients * step - _SHEET_GAP, frames * step - _SHEET_GAP, 3), 24, np.uint8)
    with progress.track("Rendering phantom frames", patients * frames) as advance:
        for patient, frame in product(range(patients), range(frames)):
            # `write_phantom_set` leaves numbers free for the patients of the other parts.
            drawn = phantom.render(world, patient * len(PARTS), frame, size)
            tile = sheet[patient * step :, frame * step :][:size, :size]
            tile[:] = drawn.image
            tile[outline(drawn.mask, outside=True)] = _SHEET_CONTOUR
            advance()
    with storage_errors(file.parent):
        write_png(file, sheet)
