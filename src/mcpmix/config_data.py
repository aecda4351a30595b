"""The section of the data: where it is, how it is split, and the procedural set.

Defaults are defined here, in `config.py` and in `config_training.py`, and nowhere else.
"""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from mcpmix.config_training import NaturalInt, PositiveInt, Section, Share

_MOST_CLASSES = 255  # labels are stored in 8 bits
_KINDS = 2  # of lesion that the phantom can draw


class PhantomConfig(Section):
    """A procedural data set, for the demo and for tests."""

    train_patients: PositiveInt = 4
    """Patients whose frames carry labels for training."""
    validation_patients: PositiveInt = 2
    """Patients on which the checkpoint is chosen."""
    test_patients: PositiveInt = 12
    """Unseen patients for the final figures."""
    frames_per_patient: PositiveInt = 6
    """Frames of each training and validation patient."""
    test_frames_per_patient: PositiveInt = 4
    """Frames of each test patient."""
    known_frames_per_patient: NaturalInt = 12
    """Further frames of each training patient, to test on patients that training knows."""


class SplitConfig(Section):
    """Which samples are for training, validation and test. A group is never split."""

    file: Path | None = None
    """JSON with lists of ids under train, validation, test and, if wanted, known; overrides all below."""
    method: str = "random"
    """`random`, `stratified` (equal sizes of lesions in all parts), `kfold`, or a split that comes with the
    data: `official`, `pranet` (`mcpmix data list` names them)."""
    validation: Share = 0.15
    """Share of the groups for choosing the checkpoint."""
    test: Share = 0.2
    """Share of the groups for the final figures."""
    folds: int = Field(default=5, ge=2)
    """Number of folds of `kfold`."""
    fold: NaturalInt = 0
    """Which fold is the test part, from 0."""

    @model_validator(mode="after")
    def _leaves_training_data(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation + test must stay below 1, got {self.validation} + {self.test}")
        if self.fold >= self.folds:
            raise ValueError(f"fold must be below folds (counted from 0), got {self.fold} of {self.folds}")
        return self


class DataConfig(Section):
    """Where images and masks come from."""

    source: str = "folder"
    """`folder`: own images and masks; `manifest` (CSV or JSONL), `nnunet` or `imagefolder`: own data in these
    layouts; a name of `mcpmix data list`; `phantom`: the procedural set."""
    root: Path | None = None
    """Where the data is, for all sources but `folder` and `phantom`: a folder, or an archive as published."""
    images: Path | None = None
    """Folder of images (PNG, JPEG, TIFF or BMP)."""
    masks: Path | None = None
    """Folder of masks with the same file stems."""
    groups: Path | None = None
    """CSV with the columns id and group (patient, lesion, video); without it each image is its own group."""
    unlabelled: tuple[Path, ...] = ()
    """Folders or archives of images of the same kind without masks. The generator's base learns from them
    (section adapt), and so do the arms that take pseudo-labels."""
    labelled: PositiveInt | None = None
    """Training images that keep their masks, drawn in whole groups; the others count as unlabelled. None: all
    keep them."""
    classes: tuple[Annotated[str, Field(pattern=r"^\w[\w .+-]*$")], ...] = ()
    """Names of the labels 1, 2, ... of the masks, at least two, for several kinds of lesion; 0 is background.
    Empty: masks are lesion or background."""
    size: PositiveInt = 128
    """Side in pixels of the square that all networks see."""
    split: SplitConfig = SplitConfig()
    phantom: PhantomConfig = PhantomConfig()

    @field_validator("unlabelled", mode="before")
    @classmethod
    def _one_or_several(cls, value: object) -> object:
        return (value,) if isinstance(value, str | Path) else value

    @field_validator("classes", mode="before")
    @classmethod
    def _names_with_commas(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Settings of runs with one kind of lesion, and the keys of their stages, stay what they were.
        return {name: value for name, value in handler(self).items() if name != "classes" or value}

    @property
    def labels(self) -> int:
        """How many values a pixel of a mask can have: background, and one for each kind of lesion."""
        return 1 + max(1, len(self.classes))

    @property
    def channels(self) -> int:
        """Channels of a segmenter's logits: one that says lesion or not, or one for each label."""
        return self.labels if self.classes else 1

    @property
    def has_unlabelled(self) -> bool:
        """Whether there are images without masks to learn from."""
        return bool(self.unlabelled) or self.labelled is not None

    @model_validator(mode="after")
    def _classes_are_several(self) -> Self:
        if len(self.classes) == 1 or len(self.classes) > _MOST_CLASSES:
            raise ValueError(
                f"classes: expected 2 to {_MOST_CLASSES} names, got {len(self.classes)}. For one kind "
                "of lesion leave it out: masks then are lesion or background"
            )
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(
                f"classes: {', '.join(self.classes)} names one twice; labels need different names"
            )
        if self.source == "phantom" and len(self.classes) > _KINDS:
            raise ValueError(
                f"classes: a phantom draws {_KINDS} kinds of lesion, got {len(self.classes)} names"
            )
        return self

    @model_validator(mode="after")
    def _has_its_paths(self) -> Self:
        if self.source == "phantom" and self.labelled is not None:
            raise ValueError(
                "labelled is for real images: a phantom draws as many labelled frames as asked for"
            )
        if self.source == "folder" and (self.images is None or self.masks is None):
            raise ValueError("source: folder needs both `images` and `masks`")
        if self.source not in ("folder", "phantom") and self.root is None:
            raise ValueError(
                f"source: {self.source} needs `root`, the folder or file of the data: give data.root=PATH"
            )
        return self
