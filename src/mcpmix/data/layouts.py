"""Own data on disk: images and masks paired by name, and the four layouts that are read."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcpmix.core.errors import DataError, bullet_list, sorted_list
from mcpmix.core.files import has_file, read_json
from mcpmix.core.pixels import ENDINGS, list_images
from mcpmix.data.sample import Sample, likely_mistake, read_pair
from mcpmix.data.splits import ALL_PARTS, read_lists
from mcpmix.data.tables import GUESSED_GROUP, Row, kind_of_groups, read_groups, read_rows

MASK_SUFFIXES = ("_segmentation", "_mask", "-mask", "_seg", "-seg", "_gt", "_label")
_MOST_ENDINGS = 0.9  # share of the masks with one ending, from which it stands for "mask"
GIVEN = "official"  # name of the split that comes with the data
GROUPS, SPLIT = "groups.csv", "split.json"
MANIFESTS = ("manifest.csv", "manifest.jsonl")
METADATA = ("metadata.jsonl", "metadata.csv")
GROUP_COLUMNS = ("group", "patient", "patient_id", "lesion", "video", "sequence")
_PART_NAMES = {"val": "validation", "valid": "validation", "dev": "validation", "training": "train"}
HUB_IMAGE = ("image_file_name", "file_name")
HUB_MASK = ("mask_file_name", "label_file_name", "annotation_file_name")
NNUNET = "dataset.json"
NNUNET_TABLE = "samples.csv"  # groups and parts, for which nnU-Net has no place
NNUNET_FOLDERS = {"train": ("imagesTr", "labelsTr"), "test": ("imagesTs", "labelsTs")}
NNUNET_SPLITS = "splits_final.json"  # beside nnU-Net's preprocessed data, as the two that follow
NNUNET_COUNTERPARTS = "counterparts"  # a folder of images per case, for the trainers of `segmenter/nnunet.py`
NNUNET_RLA = "rla.json"  # in the folder of counterparts: the section rla of a configuration
CHANNEL = "_0000"  # before the ending of an image: all channels in one file


@dataclass(frozen=True)
class Collection:
    """What a data set on disk gives: its samples, and the splits that come with it."""

    samples: tuple[Sample, ...]  # in the order of their ids; files are named, not decoded
    # By the name of the split (`official`, `pranet`), the part of each id, one of `ALL_PARTS`. Ids
    # without a part are left out of that split.
    splits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # By the name of a split that puts a group into two parts, why it is offered anyway and what that means.
    # Other splits may not separate a group.
    leaks: Mapping[str, str] = field(default_factory=dict)
    grouped: str = ""  # what a group is (`patient`, `video sequence`); empty if each image is its own
    classes: tuple[str, ...] = ()  # of the labels 1, 2, ... of the masks; none: lesion or background

    @property
    def guessed(self) -> bool:
        """Whether groups were guessed by `mcpmix data groups` and not recorded."""
        return self.grouped == GUESSED_GROUP

    def row(self, sample: Sample) -> dict[str, str]:
        """A sample's id, group (empty if the data set has none) and part, as tables keep them."""
        group = sample.group if self.grouped else ""
        return {"id": sample.id, "group": group, "split": self.splits.get(GIVEN, {}).get(sample.id, "")}


# --- images and masks, paired by name -----------------------------------------------------------------------


def scan_folder(
    images: Path,
    masks: Path,
    groups: Path | None = None,
    *,
    labels: int = 2,
    left_out: list[str] | None = None,
    mended: list[str] | None = None,
) -> Collection:
    """Pair images with masks by name. Nothing is decoded, unless to report all problems at once.

    A mask belongs to the image with the same stem, or with the same stem and one of `MASK_SUFFIXES` or an
    ending that nearly all masks share; case does not matter. Both may lie in one folder if the masks have one
    of the suffixes. Hidden files and files with other endings are passed over.

    Args:
        groups: CSV with the columns id (stem or name of the image file) and group; without it each image is
            its own group.
        labels: how many values a pixel of a mask can have.
        left_out: takes the problems of single files, which are then left out; without it they are errors.
        mended: takes what is put right while reading; without it that is an error too.
    """
    problems: list[str] = []
    image_files = _files(images, "images", problems)
    if os.path.realpath(images) != os.path.realpath(masks):  # `resolve` would fail on links in a circle
        mask_files = _files(masks, "masks", problems)
    else:
        mask_files = [path for path in image_files if _without_suffix(path.stem)]
        image_files = [path for path in image_files if not _without_suffix(path.stem)]
    # What nearly all masks add to the stems of their images, such as `_annotated`, stands for "mask" too.
    known = {path.stem.casefold() for path in image_files}
    others = [path.stem for path in mask_files if path.stem.casefold() not in known]
    endings = Counter(
        stem[cut:] for stem in others for cut in range(1, len(stem)) if stem[:cut].casefold() in known
    )
    common = [end for end, count in endings.most_common(1) if count >= _MOST_ENDINGS * len(mask_files)]
    suffixes = tuple(dict.fromkeys((*MASK_SUFFIXES, *common)))
    # Without one of the folders, naming every file of the other as single would only hide the cause.
    pairs = [] if problems else pair_files(image_files, mask_files, masks, problems, suffixes)
    group_of = {image.stem: image.stem for image in image_files}
    if groups is not None:
        group_of = read_groups(groups, image_files, problems, mended)
    if problems and pairs and left_out is not None:
        left_out += problems
        pairs = [(image, mask) for image, mask in pairs if group_of.get(image.stem)]
    elif problems:
        problems += [text for pair in pairs for text in read_pair(*pair, labels)[1]]
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        guess = likely_mistake(pairs or list(zip(image_files, mask_files, strict=False)))
        if guess:  # what follows from it would only hide it
            raise DataError(guess.strip())
        raise DataError(
            sorted_list(f"{count} with the images in {images} and the masks in {masks}:", problems)
        )
    samples = (
        Sample(image.stem, image, mask, group_of[image.stem], "folder", labels=labels)
        for image, mask in pairs
    )
    return Collection(tuple(samples), grouped=kind_of_groups(groups) if pairs else "")


def _files(folder: Path, kind: str, problems: list[str]) -> list[Path]:
    if not folder.is_dir():
        state = "is a file, not a folder" if folder.exists() else "does not exist"
        problems.append(f"{folder} {state}. Expected the folder of {kind}: check the path.")
        return []
    files = list_images(folder)
    if not files:
        problems.append(f"{folder} holds no {kind}. Expected files ending in {', '.join(sorted(ENDINGS))}.")
    return files


def _without_suffix(stem: str, suffixes: Sequence[str] = MASK_SUFFIXES) -> str:
    """The stem of the image that a mask with a suffix belongs to; empty without a suffix."""
    return next((stem[: -len(end)] for end in suffixes if stem.lower().endswith(end.lower())), "")


def pair_files(
    image_files: Sequence[Path],
    mask_files: Sequence[Path],
    masks: Path,
    problems: list[str],
    suffixes: Sequence[str] = MASK_SUFFIXES,
) -> list[tuple[Path, Path]]:
    """Pairs that are certain, in the order of the images; the others become problems."""
    image_at: dict[str, list[Path]] = defaultdict(list)
    for path in image_files:
        image_at[path.stem.casefold()].append(path)
    mask_at: dict[str, list[Path]] = defaultdict(list)
    for path in mask_files:
        key = path.stem.casefold()
        stem = _without_suffix(path.stem, suffixes).casefold()
        mask_at[key if key in image_at else stem or key].append(path)
    for kind, at, what in (
        ("image", image_at, "have the same stem"),
        ("mask", mask_at, "belong to the same image"),
    ):
        problems += [
            f"{', '.join(map(str, paths))} {what}. Expected one {kind} per stem: rename or remove all but "
            "one."
            for paths in at.values()
            if len(paths) > 1
        ]
    suffixed = f", with or without one of the suffixes {', '.join(suffixes)}" if suffixes else ""
    problems += [
        f"{paths[0]} has no mask. Expected {paths[0].stem} in {masks}{suffixed}: add the mask or remove the "
        "image."
        for key, paths in image_at.items()
        if key not in mask_at
    ]
    problems += [
        f"{path} has no image. Expected an image with the same stem: add the image or remove the mask."
        for key, paths in mask_at.items()
        if key not in image_at
        for path in paths
    ]
    return [
        (paths[0], mask_at[key][0])
        for key, paths in image_at.items()
        if len(paths) == 1 and len(mask_at.get(key, ())) == 1
    ]


# --- the four layouts, which `convert` writes ---------------------------------------------------------------


def _read_folder(root: Path) -> Collection:
    """Read `images/` and `masks/`, and `groups.csv` and `split.json` where these exist."""
    groups = root / GROUPS if (root / GROUPS).is_file() else None
    found = scan_folder(root / "images", root / "masks", groups)
    splits = {}
    if (root / SPLIT).is_file():
        splits[GIVEN] = {name: part for part, ids in read_lists(root / SPLIT).items() for name in ids}
        unknown = sorted(set(splits[GIVEN]) - {sample.id for sample in found.samples})
        if unknown:
            raise DataError(f"{root / SPLIT} names ids without images: {', '.join(unknown)}. Correct it.")
    return replace(found, splits=splits)


def _read_manifest(root: Path) -> Collection:
    """Read the table `root`, or the manifest in this folder; its paths are relative to it, or absolute."""
    table = root
    if root.is_dir():
        table = next((root / name for name in MANIFESTS if (root / name).is_file()), root / MANIFESTS[0])
    if table.suffix.lower() not in (".csv", ".tsv", ".txt", ".jsonl"):
        raise DataError(f"{table} cannot be a manifest. Expected a file ending in .csv, .tsv or .jsonl.")
    return _collect(read_rows(table), ("image",), ("mask",), "manifest")


def _read_imagefolder(root: Path) -> Collection:
    """Read Hugging Face's metadata in `root` and its folders; train/, val/ ... are a default of `split`."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder. Expected one with {METADATA[0]} in it or in its train/.")
    places = [root, *(path for path in sorted(root.iterdir()) if path.is_dir())]
    tables = [place / name for place in places for name in METADATA if (place / name).is_file()]
    if not tables:
        raise DataError(f"{root} holds no {' or '.join(METADATA)}, nor do its folders. Expected one there.")
    rows = []
    for table in tables:
        part = _part_name(table.parent.name)
        default = {"split": part} if table.parent != root and part in ALL_PARTS else {}
        rows += [replace(row, values={**default, **row.values}) for row in read_rows(table)]
    return _collect(rows, HUB_IMAGE, HUB_MASK, "imagefolder")


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
        files, found = [], []
        for kind, columns in (("image", images), ("mask", masks)):
            given = next((row.values[name] for name in columns if row.values.get(name)), "")
            files.append(row.table.parent / given)
            if not given:
                found.append(f"no {kind}. Fill it in, or remove the line.")
            elif not has_file(files[-1]):
                found.append(f"{files[-1]} does not exist. Check the path.")
        name = row.values.get("id") or files[0].stem
        part = _part_name(row.values.get("split", ""))
        if grouped and not row.values.get(grouped):
            found.append(f"{grouped} is empty. Fill it in.")
        if part and part not in ALL_PARTS:
            found.append(f"split is {part!r}. Expected {', '.join(ALL_PARTS)}, or nothing.")
        if name in samples:
            found.append(f"the id {name} stands on two lines. Add a column id with different names.")
        elif any(mark in name for mark in "/\\\0") or name in (".", ".."):
            found.append(f"the id {name!r} cannot be a file name. Choose another.")
        problems += [f"{row.place}: {text}" for text in found]
        samples[name] = Sample(name, files[0], files[1], row.values.get(grouped) or name, source)
        if part:
            parts[name] = part
    if problems:
        raise DataError(bullet_list(f"{len(problems)} problem(s) with the data set:", problems))
    ordered = tuple(samples[name] for name in sorted(samples))
    return Collection(ordered, splits={GIVEN: parts} if parts else {}, grouped=grouped)


def _part_name(text: str) -> str:
    """`val` and the like under the name that this package uses; other texts as they are, lower case."""
    return _PART_NAMES.get(text.strip().lower(), text.strip().lower())


def _read_nnunet(root: Path) -> Collection:
    """Read `imagesTr` and `labelsTr`, and `imagesTs` with `labelsTs` where these exist.

    Groups and parts come from `samples.csv` (id, group, split) if it is there; otherwise each image is its
    own group, and cases in `imagesTs` are the test part.
    """
    try:
        ending = str(read_json(root / NNUNET)["file_ending"])
    except FileNotFoundError as error:
        raise DataError(
            f"{root / NNUNET} does not exist. Expected the raw folder of an nnU-Net data set."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{root / NNUNET} cannot be read ({error!r}). Expected JSON with file_ending."
        ) from error
    problems: list[str] = []
    samples: dict[str, Sample] = {}
    parts: dict[str, str] = {}
    for part, folders in NNUNET_FOLDERS.items():
        images, labels = (root / name for name in folders)
        if not (images.is_dir() and labels.is_dir()):
            if part == "train":
                problems.append(f"{images} or {labels} does not exist. Expected both.")
            continue
        labelled = {path.name.removesuffix(ending) for path in labels.iterdir() if path.name.endswith(ending)}
        for image in sorted(path for path in images.iterdir() if path.name.endswith(ending)):
            stem = image.name.removesuffix(ending)
            case = stem.removesuffix(CHANNEL)
            if case == stem:
                problems.append(
                    f"{image}: expected {CHANNEL} before the ending, RGB in one file. Merge channels."
                )
            elif case not in labelled:
                problems.append(f"{image} has no label. Expected {labels / (case + ending)}.")
            else:
                labelled.discard(case)
                samples[case] = Sample(case, image, labels / f"{case}{ending}", case, "nnunet")
                parts[case] = part
        problems += [f"{labels / (case + ending)} has no image in {images}." for case in sorted(labelled)]
    if problems:
        raise DataError(bullet_list(f"{len(problems)} problem(s) with {root}:", problems))
    if "test" not in parts.values():
        parts = {}
    groups: dict[str, str] = {}
    if (root / NNUNET_TABLE).is_file():
        extra = {row.values.get("id", ""): row.values for row in read_rows(root / NNUNET_TABLE)}
        groups = {name: values["group"] for name, values in extra.items() if values.get("group")}
        parts = {name: values["split"] for name, values in extra.items() if values.get("split")}
    ordered = tuple(replace(samples[name], group=groups.get(name, name)) for name in sorted(samples))
    return Collection(ordered, splits={GIVEN: parts} if parts else {}, grouped="group" if groups else "")


READERS: dict[str, Callable[[Path], Collection]] = {
    "folder": _read_folder,
    "manifest": _read_manifest,
    "nnunet": _read_nnunet,
    "imagefolder": _read_imagefolder,
}
