"""The section `data`: where images and masks come from, and how they are split."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from mcpmix.core.config.section import NaturalInt, PositiveInt, Section, Share


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


class SplitConfig(Section):
    """Which samples are for training, validation and test. A group is never cut."""

    file: Path | None = None
    """JSON with lists of ids under train, validation and test; overrides all below."""
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
    size: PositiveInt = 128
    """Side in pixels of the square that all networks see."""
    split: SplitConfig = SplitConfig()
    phantom: PhantomConfig = PhantomConfig()

    @model_validator(mode="after")
    def _has_its_paths(self) -> Self:
        if self.source == "folder" and (self.images is None or self.masks is None):
            raise ValueError("source: folder needs both `images` and `masks`")
        if self.source not in ("folder", "phantom") and self.root is None:
            raise ValueError(
                f"source: {self.source} needs `root`, the folder or file of the data: give data.root=PATH"
            )
        return self
