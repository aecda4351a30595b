"""Images without masks: what a folder of new images holds."""

from collections import defaultdict
from pathlib import Path

from mcpmix.core.errors import DataError, bullet_list
from mcpmix.data.sample import ENDINGS


def list_images(images: Path) -> dict[str, Path]:
    """Image files by the name of their results: the path below the folder without its ending.

    Args:
        images: an image, or a folder with images at any depth; hidden files and folders are left out.

    Raises:
        DataError: there are none, or two of them would give results of the same name.
    """
    if images.is_file():
        return {images.stem: images}
    if not images.is_dir():
        raise DataError(f"{images} does not exist. Expected an image or a folder of images: check the path.")
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(images.rglob("*")):
        relative = path.relative_to(images)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.suffix.lower() in ENDINGS and path.is_file() and not hidden:
            found[relative.with_suffix("").as_posix()].append(path)
    if not found:
        raise DataError(f"{images} holds no images. Expected files ending in {', '.join(sorted(ENDINGS))}.")
    repeated = [" and ".join(p.name for p in paths) for paths in found.values() if len(paths) > 1]
    if repeated:
        raise DataError(
            bullet_list(f"Results in {images} would have the same name; rename one of:", repeated)
        )
    return {name: paths[0] for name, paths in found.items()}
