"""Where a user starts: a configuration for own images, or a phantom folder to practise on.

Layer 4, beside the pipeline.
"""

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from PIL import Image
from pydantic import BaseModel

from mcpmix import phantom
from mcpmix.config import Config
from mcpmix.config_file import preset_names, resolve_config
from mcpmix.core.errors import DataError, StorageError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import storage_errors, write_json, write_text
from mcpmix.data import public_sets as catalog
from mcpmix.data.archives import folder_of
from mcpmix.data.dataset import FOLDER, load_collection
from mcpmix.data.layouts import GIVEN, GROUPS, MANIFESTS, METADATA, Collection
from mcpmix.data.phantom_set import world_seed, write_phantom_set
from mcpmix.data.sample import Sample
from mcpmix.data.splits import PARTS
from mcpmix.networks.weight_files import is_present, licence_of

CONFIG_NAME = "mcpmix.yaml"
_PHANTOM_SETTINGS = "phantom.json"
_MOST_STEPS_UP = 3  # `../../../data` is still easier to read than an absolute path; more is not
_TELLING_FILES = {
    "nnunet": ("dataset.json",),
    "imagefolder": tuple(f"{place}{name}" for place in ("", "train/") for name in METADATA),
    "manifest": MANIFESTS,
    FOLDER: ("images",),
}

# What people change first. All other settings stay as the preset has them.
_MAIN_FIELDS: dict[str, Any] = {
    "name": None,
    "seed": None,
    "output": None,
    "data": {
        "source": None,
        "root": None,
        "images": None,
        "masks": None,
        "groups": None,
        "size": None,
        "split": {"file": None, "method": None, "validation": None, "test": None},
    },
    "depth": {"model": None},
    "generator": {"base": None, "prompt": {"template": None, "position": None, "target": None}},
    "finetune": {"start": None, "steps": None, "batch_size": None},
    "synthesis": {"replicas": None, "steps": None, "source": None},
    "segmenter": {"name": None, "variant": None, "weights": None},
    "train": {"arms": None, "seeds": None, "epochs": None, "batch_size": None, "learning_rate": None},
    "rla": {"controller": None, "features": None},
    "runtime": {"device": None, "precision": None, "jobs": None},
}


# --- own images --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Starter:
    """A configuration that was written.

    Attributes:
        file: where it is.
        findings: what was seen in the folders and which weights it needs, a line each.
    """

    file: Path
    findings: tuple[str, ...]


def write_starter_config(
    folder: Path,
    images: Path | None = None,
    masks: Path | None = None,
    *,
    groups: Path | None = None,
    source: str | None = None,
    root: Path | None = None,
    preset: str | None = None,
    force: bool = False,
    progress: Progress = SILENT,
) -> Starter:
    """Look at a data set and write `folder/mcpmix.yaml`, with a comment for each main setting.

    Args:
        folder: made if needed.
        images: folder of images, for the source `folder`.
        masks: folder of masks, for the source `folder`.
        groups: CSV with the columns id and group, for the source `folder`.
        source: folder, manifest, nnunet, imagefolder, or a name of the catalogue; by default found by looking
            at `root`.
        root: where the data is, for the other sources. If a split comes with it, it is used.
        preset: where the settings come from, `small` by default; a data set of the catalogue adds its own,
            and images that are named like those of one take its prompt.
        force: whether to replace a configuration that is there.
        progress: where to report.

    Raises:
        StorageError: there is a configuration, and `force` is not set; or the disk is full.
        ConfigError: there is no such preset or source, or a path is missing.
        DataError: with every problem of the folders.
    """
    file = folder / CONFIG_NAME
    if file.exists() and not force:
        raise StorageError(f"{file} exists. Choose another folder, or replace it with --force.")
    home = Path(os.path.realpath(folder))
    if source is None:
        source = find_source(root, progress) if root is not None else FOLDER
    if source == FOLDER and root is not None:
        images, masks, groups, root = _folder_places(root, images, masks, groups)
    places = {"root": root, "images": images, "masks": masks, "groups": groups}
    data: dict[str, Any] = {
        name: _path_for(place, home) if place is not None else None for name, place in places.items()
    }
    presets = _presets_for(source, preset)
    tree: dict[str, Any] = {"preset": presets, "name": _run_name(home), "data": {"source": source, **data}}
    resolve_config(tree)  # refuses a preset, before anything is decoded
    collection = load_collection(
        source, root=root, images=images, masks=masks, groups=groups, progress=progress
    )
    if GIVEN in collection.splits:
        tree["data"]["split"] = {"method": GIVEN}
    prompt_of = None if source in catalog.entries() else _named_like(collection)
    if prompt_of is not None:
        tree["generator"] = {"prompt": _prompt(prompt_of)}
    config = resolve_config(tree)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(file, commented_yaml(config, *presets))
    findings = [f"source: {source}", *_findings(collection, config)]
    if prompt_of is not None:
        findings.append(f"images are named like those of {prompt_of}, so its prompt is used")
    findings.append(f"prompt: {config.generator.prompt.text}")
    return Starter(file, tuple(findings))


def find_source(root: Path, progress: Progress = SILENT) -> str:
    """What kind of data set lies somewhere, by its layout and names.

    Args:
        root: a folder, a list (CSV, TSV or JSONL) or an archive, which is unpacked to be looked at.
        progress: where unpacking reports to.

    Raises:
        DataError: nothing is recognised.
    """
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
        f"{root}: no layout that is known. Expected {', '.join(_TELLING_FILES)}, or a data set of `mcpmix "
        "data list`: see docs/data.md, or name the layout with --source."
    )


def _folder_places(
    root: Path, images: Path | None, masks: Path | None, groups: Path | None
) -> tuple[Path, Path, Path | None, None]:
    """A folder with `images/` and `masks/`, as its parts; what was named stays."""
    place = folder_of(root)
    table = place / GROUPS
    return (
        images or place / "images",
        masks or place / "masks",
        groups or (table if table.is_file() else None),
        None,
    )


def _presets_for(source: str, preset: str | None) -> list[str]:
    """The one that was asked for, and over it that of a known data set."""
    known = [source] if source in catalog.entries() and source in preset_names() else []
    return [*([preset] if preset is not None else []), *known] or ["small"]


def _named_like(collection: Collection) -> str | None:
    name = catalog.recognise_names(sample.image.stem for sample in collection.samples)
    return name if name in preset_names() else None


def _prompt(preset: str) -> dict[str, Any]:
    return resolve_config({"preset": preset, "data": {"root": "."}}).generator.prompt.model_dump()


def commented_yaml(config: Config, *presets: str) -> str:
    """The main settings of a configuration as YAML, each with what the schema says about it.

    Args:
        config: the values.
        presets: names; what the text leaves out comes from there, of several from the last that has it.
    """
    start = presets[0] if len(presets) == 1 else f"[{', '.join(presets)}]"
    lines = [
        f"# Settings of a run. Those that are not here are as in the preset `{start}`; `mcpmix run` writes",
        "# all of them to config.yaml in the folder of the run. Paths are relative to this file.",
        "",
        f"preset: {start}",
        *_commented(config, _MAIN_FIELDS, ""),
    ]
    return "\n".join(lines) + "\n"


def _commented(section: BaseModel, wanted: dict[str, Any], indent: str) -> Iterator[str]:
    for name, inner in wanted.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            if not indent:
                yield from ("", f"# {_first_line(type(value))}")
            yield f"{indent}{name}:"
            yield from _commented(value, inner, indent + "  ")
            continue
        description = type(section).model_fields[name].description
        for line in (description or "").splitlines():
            yield f"{indent}# {line.strip()}"
        plain = section.model_dump(mode="json", include={name})
        flow = None if isinstance(value, tuple) else False
        yield (
            indent + yaml.safe_dump(plain, default_flow_style=flow, allow_unicode=True, width=10**6).rstrip()
        )


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


def _path_for(path: Path, home: Path) -> str:
    """A path as it goes into a configuration in `home`: relative while that is easy to read."""
    absolute = os.path.abspath(path.expanduser())  # noqa: PTH100 (links stay what the user named)
    try:
        relative = os.path.relpath(absolute, home)
    except ValueError:  # another drive
        return absolute
    steps_up = Path(relative).parts.count("..")
    return Path(relative).as_posix() if steps_up <= _MOST_STEPS_UP else absolute


def _run_name(home: Path) -> str:
    """The folder's name, as far as it may be the name of a run."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", home.name).lstrip("._-") or "run"


def _findings(collection: Collection, config: Config) -> Iterator[str]:
    samples = collection.samples
    if config.data.source == FOLDER:
        yield f"{len(samples)} images with masks, {_sizes(samples)}"
        yield f"masks are named {_suffixes(samples)}"
    else:
        yield f"{len(samples)} images with masks; `mcpmix check` looks into them"
    if collection.grouped:
        groups = len({sample.group for sample in samples})
        yield f"{groups} groups ({collection.grouped}), which the split keeps whole"
    else:
        yield "every image is its own group; if several show one patient, give --groups, or scores flatter"
    for name in collection.splits:
        leaks = f"; it leaks: {collection.leaks[name]}" if name in collection.leaks else ""
        chosen = ", used" if name == config.data.split.method else ""
        yield f"comes with the split {name}{chosen}{leaks}"
    absent = False
    named = {
        "pipeline": config.generator.base,
        "control": config.finetune.start,
        "depth": config.depth.model,
    }
    for part, source in named.items():
        if source is None:
            continue
        here = is_present(source, part)
        absent |= not here
        place = "on this machine" if here else "not on this machine"
        yield f"{part} weights: {source}, {place}; licence: {licence_of(source)}"
    if absent:
        yield "`mcpmix check` says how to get them; --preset tiny needs none of them, and no GPU"


def _sizes(samples: Sequence[Sample]) -> str:
    """The commonest size and how many others there are."""
    sizes: Counter[tuple[int, int]] = Counter()
    for sample in samples:
        with Image.open(sample.image) as image:
            sizes[image.size] += 1
    (width, height), _ = sizes.most_common(1)[0]
    text = f"{width} x {height} pixels"
    return text if len(sizes) == 1 else f"mostly {text} and {len(sizes) - 1} other sizes"


def _suffixes(samples: Sequence[Sample]) -> str:
    """By which rule masks belong to images."""
    endings = Counter(sample.mask.stem[len(sample.id) :].lower() for sample in samples)
    names = [f"IMAGE{ending}" if ending else "like their images" for ending, _ in endings.most_common()]
    return " or ".join(names)


# --- phantom -----------------------------------------------------------------------------------------------


def write_phantom_folder(
    out: Path, *, patients: int, frames: int, seed: int, size: int, progress: Progress = SILENT
) -> list[Sample]:
    """Draw a labelled phantom set: `images/`, `masks/` and `groups.csv`; a killed call can be repeated.

    Args:
        out: where to write.
        patients: number of patients.
        frames: frames of each patient.
        seed: another one gives other patients.
        size: side of a frame in pixels.
        progress: where to report.

    Raises:
        StorageError: the folder holds another phantom set, or the disk is full.
        DataError: the size is out of range.
    """
    settings = {"patients": patients, "frames": frames, "seed": seed, "size": size}
    with storage_errors(out):
        _claim_phantom(out, settings)
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
        with (out / "groups.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "group"])
            writer.writerows([sample.id, sample.group] for sample in samples)
    return samples


def write_phantom_sheet(
    file: Path, *, patients: int, frames: int, seed: int, size: int, progress: Progress = SILENT
) -> None:
    """Draw phantom frames with the outlines of their lesions into one PNG, a row per patient.

    Args:
        file: where to write.
        patients: number of rows.
        frames: number of columns.
        seed: as in `write_phantom_folder`, which draws the same frames.
        size: side of a frame in pixels.
        progress: where to report.
    """
    world = world_seed(seed)
    drawn = []
    with progress.track("Rendering phantom frames", patients * frames) as advance:
        for index in range(patients * frames):
            patient, frame = divmod(index, frames)
            # `write_phantom_set` leaves numbers free for the patients of the other parts.
            drawn.append(phantom.render(world, patient * len(PARTS), frame, size))
            advance()
    sheet = phantom.contact_sheet(drawn, frames, contours=True)
    with storage_errors(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(sheet).save(file, format="PNG")


def _claim_phantom(out: Path, settings: dict[str, int]) -> None:
    """Frames that are there are kept, so they must be of the same set."""
    marker = out / _PHANTOM_SETTINGS
    if not marker.exists() and out.is_dir() and any(out.iterdir()):
        raise StorageError(f"{out} is not empty. Choose another folder.")
    if marker.exists() and yaml.safe_load(marker.read_text(encoding="utf-8")) != settings:
        raise StorageError(f"{out} holds another phantom set ({marker.name}). Choose another folder.")
    out.mkdir(parents=True, exist_ok=True)
    write_json(marker, settings)
