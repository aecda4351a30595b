"""What a run has made, without a picture of a patient: segmenters, cards, tables, report, ledger.

Left out are images, masks, predictions, depth maps and scores by image, and of the segmenters `images.json`,
whose prints let one guess a coarse thumbnail (docs/integrity.md). The page of the report loses its pictures
and outlines, and keeps tables and charts. What remains is looked through before it is written.
"""

import base64
import io
import re
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError
from safetensors import SafetensorError, safe_open

from mcpmix.config_file import load_config, to_yaml, without_places
from mcpmix.core.errors import DataError, StorageError, bullet_list
from mcpmix.core.stage_folder import MANIFEST, read_artifact, verify
from mcpmix.pack.archive import Members

_SEGMENTER = ("README.md", "config.json", "log.jsonl", MANIFEST, "model.safetensors")
_EVALUATION = ("README.md", "summary.json", "summary-known.json", "classes.json", "classes-known.json")
_REPORT = ("table.json", "table.md")
_TILE = re.compile(r'<figure class="tile">.*?</figure>', re.DOTALL)  # a picture with the outlines on it
_NOTE = '<p class="warning">Copy without pictures: images and outlines were taken out when it was packed.</p>'
_DATA_URI = re.compile(r"data:image/|<image\b|;base64,", re.IGNORECASE)
_BASE64 = re.compile(r"[A-Za-z0-9+/]{64,}={0,2}")  # 48 bytes and more; a picture needs them


def results(run: Path) -> tuple[Members, dict[str, Any]]:
    """The members and the facts of an archive of a run's results.

    Raises:
        StorageError: a stage is not finished, or was changed.
        DataError: something that would be packed shows an image.
    """
    report = read_artifact(run / "report")
    if report is None:
        raise StorageError(
            f"{run} has no finished report. Expected the folder of a run that `mcpmix run` ended."
        )
    verify(report)
    settings = without_places(load_config(run / "config.yaml"))
    page = _TILE.sub("", (report / "report.html").read_text(encoding="utf-8"))
    members: dict[str, Path | bytes] = {
        "config.yaml": to_yaml(settings).encode(),
        "report/report.html": page.replace("<main>", f"<main>\n{_NOTE}", 1).encode(),
        **{f"report/{name}": report / name for name in _REPORT},
    }
    cells = [(arm, seed) for arm in settings.train.arms for seed in settings.train.seeds]
    for arm, seed in cells:
        for stage, names in (("segmenter", _SEGMENTER), ("evaluation", _EVALUATION)):
            place = f"{stage}/{arm}/seed-{seed}"
            artifact = read_artifact(run / place)
            if artifact is None:
                raise StorageError(f"{run / place} is not finished. Run `mcpmix run` again, then pack.")
            verify(artifact, names)
            members |= {f"{place}/{name}": artifact / name for name in names if (artifact / name).is_file()}
    pairs = read_artifact(run / "pairs")
    if pairs is not None:
        verify(pairs, ["ledger.jsonl"])
        members["pairs/ledger.jsonl"] = pairs / "ledger.jsonl"
    require_no_images(members)
    facts = {
        "holds": f"{len(cells)} segmenters of {settings.name}, cards, report, ledger; no patient image",
        "patient_images": "none: every file was looked through",
        "names": "of samples in the ledger, of groups in the report",
        "missing": [],
    }
    return members, facts


def require_no_images(members: Members) -> None:
    """Refuse members that are, or hold, an image: each must be safetensors, or text without a picture in it.

    Charts are drawn as SVG paths in the page and hold no pixels.

    Raises:
        DataError: with every member that shows something, or that is of no known kind.
    """
    problems = []
    for name, content in members.items():
        if name.endswith(".safetensors") and isinstance(content, Path):
            try:
                safe_open(content, "np").__enter__().keys()
            except (SafetensorError, OSError) as error:
                problems.append(f"{name} is not a safetensors file ({error})")
            continue
        data = content if isinstance(content, bytes) else content.read_bytes()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            problems.append(f"{name} is neither text nor weights")
            continue
        embedded = (_decoded(found[0]) for found in _BASE64.finditer(text))
        if _is_image(data) or _DATA_URI.search(text) or any(map(_is_image, embedded)):
            problems.append(f"{name} holds an image")
    if problems:
        raise DataError(bullet_list("Nothing was packed, because a patient could be seen.", problems))


def _decoded(text: str) -> bytes:
    bare = text.rstrip("=")
    bare = bare[:-1] if len(bare) % 4 == 1 else bare  # no text of bytes ends like this
    return base64.b64decode(bare + "=" * (-len(bare) % 4))


def _is_image(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)):
            return True
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        return False
