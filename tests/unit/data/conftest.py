"""A small folder of images and masks to spoil."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mcpmix.data.sample import Sample

MakePair = Callable[..., Sample]


@pytest.fixture
def make_pair(tmp_path: Path) -> MakePair:
    """Write images/<stem>.png and masks/<stem><suffix>.png; pixels depend on `look` only."""

    def make(
        stem: str, look: int | None = None, group: str | None = None, suffix: str = "", side: int = 8
    ) -> Sample:
        rng = np.random.default_rng(sum(stem.encode()) if look is None else look)
        image = tmp_path / "images" / f"{stem}.png"
        mask = tmp_path / "masks" / f"{stem}{suffix}.png"
        for path in (image, mask):
            path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side + 2, 3), dtype=np.uint8)).save(image)
        Image.fromarray(rng.integers(0, 2, (side, side + 2), dtype=np.uint8) * np.uint8(255)).save(mask)
        return Sample(stem, image, mask, stem if group is None else group, "folder")

    return make
