"""Layouts of own data: `folder`, `manifest`, `nnunet` and `imagefolder`, each read and written."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.core.pixels import write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import new_folder, storage_errors, write_json, write_text, written
from mcpmix.data.folder import Row, read_rows, scan_folder, write_csv
from mcpmix.data.sample import Sample, read_image, read_mask
from mcpmix.data.splits import PARTS, Split, read_lists, write_split

GIVEN = "official"  # name of the split that comes with the data
GROUPS, SPLIT = "groups.csv", "split.json"
MANIFESTS = ("manifest.csv", "manifest.jsonl")
METADATA = ("metadata.jsonl", "metadata.csv")
GROUP_COLUMNS = ("group", "patient", "patient_id", "lesion", "video", "sequence")
_PART_NAMES = {"val": "validation", "valid": "validation", "dev": "validation", "training": "train"}
_HUB_IMAGE = ("image_file_name", "file_name")
_HUB_MASK = ("mask_file_name", "label_file_name", "annotation_file_name")
_NNUNET = "dataset.json"
_NNUNET_TABLE = "samples.csv"  # groups and parts, for which nnU-Net has no place
_NNUNET_FOLDERS = {"train": ("imagesTr", "labelsTr"), "test": ("imagesTs", "labelsTs")}
_CHANNEL = "_0000"  # before the ending of an image: all channels in one file

_Step = Callable[[], object]


@dataclass(frozen=True)
class Collection:
    """What a data set on disk gives: its samples, and the splits that come with it."""

    samples: tuple[Sample, ...]  # in the order of their ids; files are named, not decoded
    # By the name of the split (`official`, `pranet`), the part of each id: train, validation or test. Ids
    # without a part are left out of that split.
    splits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # By the name of a split that puts a group into two parts, why it is offered anyway and what that means.
    # Other splits may not separate a group.
    leaks: Mapping[str, str] = field(default_factory=dict)
    grouped: str = ""  # what a group is (`patient`, `video sequence`); empty if each image is its own

    def row(self, sample: Sample) -> dict[str, str]:
        """A sample's id, group (empty if the data set has none) and part, as tables keep them."""
        group = sample.group if self.grouped else ""
        return {"id": sample.id, "group": group, "split": self.splits.get(GIVEN, {}).get(sample.id, "")}


def convert(collection: Collection, layout: str, out: Path, progress: Progress = SILENT) -> None:
    """Write a data set in another layout, whole or not at all.

    Ids, groups, the split that comes with the data, pixels and masks are kept. Files are copied byte for
    byte; for nnU-Net, which reads no JPEG and wants labels 0 and 1, pixels are stored as PNG.

    Args:
        layout: one of `WRITERS`.
        out: a folder that does not exist, or is empty; for nnU-Net, with a name that it finds.
    """
    if layout == "nnunet" and not re.fullmatch(r"Dataset\d{3}_\w+", out.name):
        raise DataError(
            f"nnU-Net would not find a data set in {out.name}. Expected a name like Dataset501_Polyps: three "
            "digits, an underscore, letters."
        )
    with storage_errors(out), written(new_folder(out)) as folder:
        folder.mkdir()
        with progress.track("Writing files", len(collection.samples)) as advance:
            WRITERS[layout](collection, folder, advance)


def _copy_files(sample: Sample, folder: Path) -> tuple[str, str]:
    """Copy image and mask, byte for byte, to `images/` and `masks/`; their paths relative to the folder."""
    paths = []
    for kind, source in (("images", sample.image), ("masks", sample.mask)):
        path = f"{kind}/{sample.id}{source.suffix.lower()}"
        (folder / kind).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / path)
        paths.append(path)
    return paths[0], paths[1]


# --- folder: images/ and masks/, perhaps groups.csv and split.json -----------------------------------------


def _read_folder(root: Path) -> Collection:
    groups = root / GROUPS if (root / GROUPS).is_file() else None
    samples = tuple(scan_folder(root / "images", root / "masks", groups))
    splits = {}
    if (root / SPLIT).is_file():
        splits[GIVEN] = {name: part for part, ids in read_lists(root / SPLIT).items() for name in ids}
        unknown = sorted(set(splits[GIVEN]) - {sample.id for sample in samples})
        if unknown:
            raise DataError(f"{root / SPLIT} names ids without images: {', '.join(unknown)}. Correct it.")
    return Collection(samples, splits, grouped="group" if groups else "")


def _write_folder(collection: Collection, folder: Path, step: _Step) -> None:
    for sample in collection.samples:
        _copy_files(sample, folder)
        step()
    write_tables(collection, folder)


def write_tables(collection: Collection, folder: Path) -> None:
    """Write `groups.csv` and `split.json` where the data has groups and a split."""
    if collection.grouped:
        write_csv(folder / GROUPS, [{"id": item.id, "group": item.group} for item in collection.samples])
    if given := collection.splits.get(GIVEN):
        parts = (tuple(sorted(name for name in given if given[name] == part)) for part in PARTS)
        write_split(folder / SPLIT, Split(*parts))


# --- manifest: a table with the columns image and mask, and perhaps id, group (or patient ...) and split ---


def _read_manifest(root: Path) -> Collection:
    """Read the table `root`, or the manifest in this folder; its paths are relative to it, or absolute."""
    table = root
    if root.is_dir():
        table = next((root / name for name in MANIFESTS if (root / name).is_file()), root / MANIFESTS[0])
    if table.suffix.lower() not in (".csv", ".tsv", ".txt", ".jsonl"):
        raise DataError(f"{table} cannot be a manifest. Expected a file ending in .csv, .tsv or .jsonl.")
    return _collect(read_rows(table), ("image",), ("mask",), "manifest")


def _write_manifest(collection: Collection, folder: Path, step: _Step) -> None:
    rows = []
    for sample in collection.samples:
        image, mask = _copy_files(sample, folder)
        rows.append({"id": sample.id, "image": image, "mask": mask, **collection.row(sample)})
        step()
    write_csv(folder / MANIFESTS[0], rows)


def _collect(rows: Sequence[Row], images: Sequence[str], masks: Sequence[str], source: str) -> Collection:
    """The samples of rows that name files relative to their table.

    In addition to the files, a row may give an `id` (otherwise the stem of the image), a group in one of
    `GROUP_COLUMNS` (otherwise each image is its own), and a `split`. `images` and `masks` are the columns in
    which the files may stand.
    """
    problems = [
        f"{table} has the columns: {', '.join(sorted(columns)) or 'none'}. Expected {' or '.join(names)}: "
        "rename or add it."
        for table, columns in {row.table: set(row.values) for row in rows}.items()
        for names in (images, masks)
        if not columns & set(names)
    ]
    samples: dict[str, Sample] = {}
    parts: dict[str, str] = {}
    grouped = next((name for name in GROUP_COLUMNS if any(row.values.get(name) for row in rows)), "")
    for row in [] if problems else rows:
        image, mask = (row.table.parent / row.first(names) for names in (images, masks))
        name = row.values.get("id") or image.stem
        part = _part_name(row.values.get("split", ""))
        files = (("image", image, row.first(images)), ("mask", mask, row.first(masks)))
        found = [f"no {kind}. Fill it in, or remove the line." for kind, _, given in files if not given]
        found += [
            f"{path} does not exist. Check the path."
            for _, path, given in files
            if given and not path.is_file()
        ]
        if grouped and not row.values.get(grouped):
            found.append(f"{grouped} is empty. Fill it in.")
        if part and part not in PARTS:
            found.append(f"split is {part!r}. Expected {', '.join(PARTS)}, or nothing.")
        if name in samples:
            found.append(f"the id {name} stands on two lines. Add a column id with different names.")
        elif any(mark in name for mark in "/\\\0") or name in (".", ".."):
            found.append(f"the id {name!r} cannot be a file name. Choose another.")
        problems += [f"{row.place}: {text}" for text in found]
        samples[name] = Sample(name, image, mask, row.values.get(grouped) or name, source)
        if part:
            parts[name] = part
    if problems:
        raise DataError(bullet_list(f"{len(problems)} problem(s) with the data set:", problems))
    ordered = tuple(samples[name] for name in sorted(samples))
    return Collection(ordered, splits={GIVEN: parts} if parts else {}, grouped=grouped)


def _part_name(text: str) -> str:
    """`val` and the like under the name that this package uses; other texts as they are, lower case."""
    return _PART_NAMES.get(text.strip().lower(), text.strip().lower())


# --- imagefolder of Hugging Face: train/metadata.jsonl with the names of image and mask --------------------


def _read_imagefolder(root: Path) -> Collection:
    """Read the metadata in `root` and its folders; train/, val/ ... are the split of rows without one."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. Expected one with {METADATA[0]} in it or in its train/.")
    places = [root, *(path for path in sorted(root.iterdir()) if path.is_dir())]
    tables = [place / name for place in places for name in METADATA if (place / name).is_file()]
    if not tables:
        raise DataError(f"{root} holds no {' or '.join(METADATA)}, nor do its folders. Expected one there.")
    rows = []
    for table in tables:
        part = _part_name(table.parent.name)
        default = {"split": part} if table.parent != root and part in PARTS else {}
        rows += [replace(row, values={**default, **row.values}) for row in read_rows(table)]
    return _collect(rows, _HUB_IMAGE, _HUB_MASK, "imagefolder")


def _write_imagefolder(collection: Collection, folder: Path, step: _Step) -> None:
    """A folder per part. Samples without a part go to train/, as readers look there; `split` stays empty."""
    rows: dict[str, list[dict[str, str]]] = {}
    for sample in collection.samples:
        row = collection.row(sample)
        place = row["split"] or PARTS[0]
        image, mask = _copy_files(sample, folder / place)
        files = {"id": sample.id, _HUB_IMAGE[0]: image, _HUB_MASK[0]: mask}
        rows.setdefault(place, []).append({**files, **row})
        step()
    for place, lines in rows.items():
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_text(folder / place / METADATA[0], text)


# --- raw folder of nnU-Net v2: RGB images in one file, labels 0 and 1 --------------------------------------


def _read_nnunet(root: Path) -> Collection:
    """Read `imagesTr` and `labelsTr`, and `imagesTs` with `labelsTs` where these exist.

    Groups and parts come from `samples.csv` (id, group, split) if it is there; otherwise each image is its
    own group, and cases in `imagesTs` are the test part.
    """
    try:
        ending = str(json.loads((root / _NNUNET).read_text(encoding="utf-8"))["file_ending"])
    except FileNotFoundError as error:
        raise DataError(
            f"{root / _NNUNET} does not exist. Expected the raw folder of an nnU-Net data set."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{root / _NNUNET} cannot be read ({error!r}). Expected JSON with file_ending."
        ) from error
    problems: list[str] = []
    cases = {
        part: _nnunet_cases(root / images, root / labels, ending, problems)
        for part, (images, labels) in _NNUNET_FOLDERS.items()
        if part == "train" or ((root / images).is_dir() and (root / labels).is_dir())
    }
    if problems:
        raise DataError(bullet_list(f"{len(problems)} problem(s) with {root}:", problems))
    samples = {sample.id: sample for part in cases for sample in cases[part]}
    parts = {sample.id: part for part in cases for sample in cases[part]} if cases.get("test") else {}
    grouped = ""
    if (root / _NNUNET_TABLE).is_file():
        extra = {row.values.get("id", ""): row.values for row in read_rows(root / _NNUNET_TABLE)}
        groups = {name: values["group"] for name, values in extra.items() if values.get("group")}
        parts = {name: values["split"] for name, values in extra.items() if values.get("split")}
        samples = {name: replace(item, group=groups.get(name, name)) for name, item in samples.items()}
        grouped = "group" if groups else ""
    ordered = tuple(samples[name] for name in sorted(samples))
    return Collection(ordered, splits={GIVEN: parts} if parts else {}, grouped=grouped)


def _nnunet_cases(images: Path, labels: Path, ending: str, problems: list[str]) -> list[Sample]:
    if not (images.is_dir() and labels.is_dir()):
        problems.append(f"{images} or {labels} does not exist. Expected both.")
        return []
    labelled = {path.name.removesuffix(ending) for path in labels.iterdir() if path.name.endswith(ending)}
    samples = []
    for image in sorted(path for path in images.iterdir() if path.name.endswith(ending)):
        stem = image.name.removesuffix(ending)
        case = stem.removesuffix(_CHANNEL)
        if case == stem:
            problems.append(
                f"{image}: expected {_CHANNEL} before the ending, RGB in one file. Merge channels."
            )
        elif case not in labelled:
            problems.append(f"{image} has no label. Expected {labels / (case + ending)}.")
        else:
            labelled.discard(case)
            samples.append(Sample(case, image, labels / f"{case}{ending}", case, "nnunet"))
    problems += [f"{labels / (case + ending)} has no image in {images}." for case in sorted(labelled)]
    return samples


def _write_nnunet(collection: Collection, folder: Path, step: _Step) -> None:
    for name in _NNUNET_FOLDERS["train"]:  # a reader expects them, also where all samples are for test
        (folder / name).mkdir()
    rows = [collection.row(sample) for sample in collection.samples]
    for sample, row in zip(collection.samples, rows, strict=True):
        images, labels = _NNUNET_FOLDERS["test" if row["split"] == "test" else "train"]
        write_png(folder / images / f"{sample.id}{_CHANNEL}.png", read_image(sample.image))
        write_png(folder / labels / f"{sample.id}.png", read_mask(sample.mask))
        step()
    description = {
        "channel_names": {"0": "R", "1": "G", "2": "B"},
        "labels": {"background": 0, "lesion": 1},
        "numTraining": sum(row["split"] != "test" for row in rows),
        "file_ending": ".png",
        "overwrite_image_reader_writer": "NaturalImage2DIO",
    }
    write_json(folder / _NNUNET, description)
    write_csv(folder / _NNUNET_TABLE, rows)


READERS: dict[str, Callable[[Path], Collection]] = {
    "folder": _read_folder,
    "manifest": _read_manifest,
    "nnunet": _read_nnunet,
    "imagefolder": _read_imagefolder,
}
WRITERS: dict[str, Callable[[Collection, Path, _Step], None]] = {
    "folder": _write_folder,
    "manifest": _write_manifest,
    "nnunet": _write_nnunet,
    "imagefolder": _write_imagefolder,
}
