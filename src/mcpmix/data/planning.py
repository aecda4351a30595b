"""From a source and a plan to samples and their split: one way for the stage and for the check."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcpmix.config import SplitConfig
from mcpmix.core.errors import ConfigError, DataError, bullet_list
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data import public_sets as catalog
from mcpmix.data.archives import folder_of
from mcpmix.data.folder import scan_folder
from mcpmix.data.layouts import READERS, Collection
from mcpmix.data.sample import Sample, read_mask
from mcpmix.data.splits import PARTS, Split, fold_split, group_split, hold_out, read_split, stratified_split

FOLDER = "folder"


@dataclass(frozen=True)
class PlannedSplit:
    """A split, and whether it can be trusted.

    Attributes:
        split: ids of each part.
        leaks: why figures on its test part are too good; empty if no group is cut.
    """

    split: Split
    leaks: str = ""


def load_collection(
    source: str,
    *,
    root: Path | None = None,
    images: Path | None = None,
    masks: Path | None = None,
    groups: Path | None = None,
    progress: Progress = SILENT,
) -> Collection:
    """The samples of a source; nothing is decoded.

    Args:
        source: folder, manifest, nnunet, imagefolder, or a name of the catalogue.
        root: where it is, a folder, file or archive; for `folder`, `images` and `masks` may be given instead.
        images: folder of images.
        masks: folder of masks.
        groups: CSV with the columns id and group.

    Raises:
        ConfigError: there is no such source.
        DataError: with every problem of the files.
    """
    if source == FOLDER and images is not None and masks is not None:
        samples = tuple(scan_folder(images, masks, groups))
        return Collection(samples, grouped="group" if groups else "")
    read = READERS.get(source)
    if read is None and source not in catalog.entries():
        known = ", ".join((*READERS, "phantom", *catalog.entries()))
        raise ConfigError(f"data.source: no source {source!r}. Known: {known}.")
    if root is None:
        raise ConfigError(f"data.root: missing; the source {source} needs the folder where its files are.")
    return read(folder_of(root, progress)) if read else catalog.load(source, root, progress)


def lesion_share(sample: Sample) -> float:
    """Share of an image that is lesion, 0..1."""
    return float(read_mask(sample.mask).mean())


def make_split(
    collection: Collection, plan: SplitConfig, seed: int, area_of: Callable[[Sample], float] = lesion_share
) -> PlannedSplit:
    """Carry out a plan.

    Args:
        collection: the data set.
        plan: what is wanted.
        seed: root of the random streams.
        area_of: size of a lesion, for stratified and kfold.

    Raises:
        ConfigError: the data has no split of this name.
        DataError: the split does not fit the data, or cuts a group without being known for it.
    """
    samples = collection.samples
    if plan.file is not None:
        return PlannedSplit(read_split(plan.file, samples))
    if plan.method == "random":
        return PlannedSplit(group_split(samples, plan.validation, plan.test, seed))
    if plan.method in ("stratified", "kfold"):
        areas = {sample.id: area_of(sample) for sample in samples}
        if plan.method == "stratified":
            return PlannedSplit(stratified_split(samples, areas, plan.validation, plan.test, seed))
        return PlannedSplit(fold_split(samples, areas, plan.folds, plan.fold, plan.validation, seed))
    return _named_split(collection, plan, seed)


def _named_split(collection: Collection, plan: SplitConfig, seed: int) -> PlannedSplit:
    name = plan.method
    if name not in collection.splits:
        known = ", ".join(("random", "stratified", "kfold", *collection.splits))
        raise ConfigError(f"data.split.method: the data comes with no split {name!r}. Known for it: {known}.")
    given = dict(collection.splits[name])
    named = [sample for sample in collection.samples if sample.id in given]
    if "validation" not in given.values():
        training = [sample for sample in named if given[sample.id] == "train"]
        given |= dict.fromkeys(hold_out(training, plan.validation, seed), "validation")
    split = Split(*(tuple(sample.id for sample in named if given[sample.id] == part) for part in PARTS))
    problems = [f"{part} is empty." for part, ids in split.parts().items() if not ids]
    leaks = collection.leaks.get(name, "")
    if not leaks:
        problems += _cut_groups(named, given)
    if problems:
        raise DataError(bullet_list(f"The split {name!r} cannot be used:", problems))
    return PlannedSplit(split, leaks)


def _cut_groups(samples: Sequence[Sample], part_of: Mapping[str, str]) -> list[str]:
    parts: dict[str, set[str]] = defaultdict(set)
    for sample in samples:
        parts[sample.group].add(part_of[sample.id])
    return [
        f"group {group} is cut ({', '.join(sorted(found))}). Put all of its samples into one part."
        for group, found in sorted(parts.items())
        if len(found) > 1
    ]
