"""What files say besides their pixels: cameras, times, places, names of people."""

from pathlib import Path

from PIL import Image

# Descriptions, makers, times and people, and the folders of EXIF, GPS, XMP, IPTC and Photoshop.
_TIFF_TAGS = frozenset({269, 270, 271, 272, 285, 305, 306, 315, 316, 700, 33432, 33723, 34377, 34665, 34853})
_INFO = frozenset({"exif", "icc_profile", "comment", "xmp", "photoshop", "XML:com.adobe.xmp", "mp"})
_MARKER, _START_OF_SCAN, _START = 0xFF, 0xDA, b"\xff\xd8"
_JFIF, _ADOBE = 0xE0, 0xEE  # of the application segments, those that say how to decode
_APPLICATION = range(0xE0, 0xF0)
_COMMENT = 0xFE


def has_metadata(image: Image.Image) -> bool:
    """Whether an open file carries more than pixels."""
    if image.format == "TIFF":
        return any(tag in _TIFF_TAGS for tag in image.getexif())
    texts = getattr(image, "text", {})  # of PNG
    return bool(texts or _INFO & set(image.info) or len(image.getexif()))


def without_metadata(path: Path) -> bytes | None:
    """A JPEG file without its metadata, its pixels not encoded again; None if it is built otherwise."""
    return _kept_segments(path.read_bytes())


def _kept_segments(content: bytes) -> bytes | None:
    if not content.startswith(_START):
        return None
    kept = [_START]
    place = 2
    while place + 4 <= len(content) and content[place] == _MARKER:
        kind = content[place + 1]
        end = place + 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        if kind == _START_OF_SCAN:
            return b"".join([*kept, content[place:]])
        if kind not in (*_APPLICATION, _COMMENT) or kind in (_JFIF, _ADOBE):
            kept.append(content[place:end])
        place = end
    return None
