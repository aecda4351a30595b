"""Whatever lies in the files, it ends in a finding: no crash, no hang, no flood of memory."""

import json
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.data.audit import Audit, Severity, inspect_all
from mcpmix.data.dataset import load_collection
from mcpmix.data.sample import Sample

GIGABYTE = 2**30


def picture(path, height=40, width=48, mode="RGB", **saving):
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).convert(mode).save(
        path, **saving
    )
    return path


def mask(path, height=40, width=48):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((height, width), np.uint8)
    pixels[5:20, 5:20] = 255
    Image.fromarray(pixels).save(path)
    return path


def errors(samples):
    """The samples with an error, by one audit of all of them."""
    grave = [f for f in Audit(inspect_all(samples), {}).findings if f.severity == Severity.ERROR]
    return {name for finding in grave for name in finding.ids}


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "bmp"])
def test_cut_at_every_64th_byte(tmp_path, ending):
    whole = picture(tmp_path / f"whole.{ending}").read_bytes()
    good = mask(tmp_path / "mask.png")
    samples = []
    for length in range(0, len(whole) - 16, 64):
        path = tmp_path / f"cut{length:06}.{ending}"
        path.write_bytes(whole[:length])
        samples.append(Sample(path.stem, path, good, path.stem, "x"))
    assert len(samples) > 20
    assert errors(samples) == {sample.id for sample in samples}


@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "bmp"])
def test_flipped_bytes_are_read_or_reported(tmp_path, ending):
    whole = picture(tmp_path / f"whole.{ending}", 16, 16).read_bytes()
    good = mask(tmp_path / "mask.png", 16, 16)
    samples = []
    for place in [*range(0, min(len(whole), 200), 3), *range(200, len(whole), 97)]:
        path = tmp_path / f"flip{place:06}.{ending}"
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        samples.append(Sample(path.stem, path, good, path.stem, "x"))
    audit = Audit(inspect_all(samples), {})
    assert all(facts.errors or facts.digest for facts in audit.facts)
    assert any(facts.errors for facts in audit.facts)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 5000, b"GIF89a" + b"\0" * 99, b"RIFF\0\0\0\0WEBP", b"%PDF-1.7", b"PK\3\4" + b"\0" * 99,
     b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"\x89PNG\r\n\x1a\n" + b"\xff" * 50, b"\xff\xd8\xff" * 30,
     b"II*\0\x08\0\0\0" + b"\xff" * 60, b"BM" + b"\xff" * 60],
)  # fmt: skip
def test_empty_files_and_wrong_magic(tmp_path, content):
    image, good = tmp_path / "a.png", mask(tmp_path / "mask.png")
    image.write_bytes(content)
    assert errors([Sample("a", image, good, "a", "x"), Sample("b", good, image, "b", "x")]) == {"a", "b"}


def test_links_that_lead_in_circles(tmp_path):
    for kind in ("images", "masks"):
        (tmp_path / kind).mkdir()
    picture(tmp_path / "images" / "a.png")
    mask(tmp_path / "masks" / "a.png")
    loop = tmp_path / "images" / "loop.png"
    loop.symlink_to(loop)
    (tmp_path / "images" / "up").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "again")
    assert [sample.id for sample in load_collection("folder", root=tmp_path).samples] == ["a"]
    assert load_collection("kvasir-seg", root=tmp_path).samples[0].id == "a"
    with pytest.raises(DataError, match="does not exist"):
        load_collection("kvasir-seg", root=tmp_path / "again")
    with pytest.raises(DataError, match="does not exist"):
        load_collection("folder", images=tmp_path / "again", masks=tmp_path / "masks")
    assert errors([Sample("l", loop, loop, "l", "x")]) == {"l"}
    (tmp_path / "list.csv").write_text("image,mask\nimages/loop.png,masks/a.png\n")
    with pytest.raises(DataError, match=r"loop\.png does not exist"):
        load_collection("manifest", root=tmp_path / "list.csv")


# --- memory ------------------------------------------------------------------------------------------------


def png_of_zeros(path, width, height, channels):
    """A PNG of this size, written row by row: small on disk, large in memory."""

    def chunk(kind, content):
        return (
            len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")
        )

    kind = {1: 0, 3: 2, 4: 6}[channels]
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, kind, 0, 0, 0])
    packer = zlib.compressobj(1)
    body = b"".join(packer.compress(bytes(1 + width * channels)) for _ in range(height)) + packer.flush()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )
    return path


AUDIT = """
import json, re, sys
from pathlib import Path
from mcpmix.core.errors import DataError
from mcpmix.data.audit import Audit
from mcpmix.data.audit import inspect_all
from mcpmix.data.dataset import load_collection
try:
    samples = load_collection("folder", root=Path(sys.argv[1])).samples
    found = [text for f in Audit(inspect_all(samples), {}).findings for text in (f.title, *f.items)]
except DataError as error:
    found = [str(error)]
# Not getrusage: its peak begins with that of the process that started this one.
peak = re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text()).group(1)
print(json.dumps([found, int(peak)]))
"""


def audited(root):
    """Findings, and the largest memory in bytes, of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", AUDIT, str(root)], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    found, kilobytes = json.loads(done.stdout)
    return found, kilobytes * 1024


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "height", "channels", "expected"),
    [
        (50_000, 1_700, 4, "masks are empty"),  # just below the limit, and transparent: the most that is read
        (50_000, 2_000, 1, "is larger than 89 million pixels"),
    ],
)
def test_very_wide_images_stay_below_two_gigabytes(tmp_path, width, height, channels, expected):
    png_of_zeros(tmp_path / "images" / "a.png", width, height, channels)
    png_of_zeros(tmp_path / "masks" / "a.png", width, height, 1)
    found, memory = audited(tmp_path)
    assert any(expected in text for text in found), found
    assert memory < 2 * GIGABYTE


@pytest.mark.slow
def test_a_zip_bomb_stays_small_and_writes_nothing(tmp_path):
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for kind in ("images", "masks"):
            with file.open(f"{kind}/a.bmp", "w") as member:
                for _ in range(400):
                    member.write(bytes(1 << 20))
    found, memory = audited(bomb)
    assert "unpacks to" in found[0]
    assert memory < GIGABYTE / 2
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == ["bomb.zip"]
