"""Pictures for the page: read in the guarded way, re-encoded from pixels alone; thumbnails made once."""

import base64
import io
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.core.files import written
from mcpmix.core.pixels import Pixels
from mcpmix.data.index import Record
from mcpmix.data.sample import pixel_digest, read_grey, read_image, read_mask, resize_image, resize_mask
from mcpmix.studio.reading import inside

_SIDE = 128  # pixels of a thumbnail
_QUALITY = 85
_IN_MEMORY = 2000  # thumbnails, of about 4 KB each
_WAITING = 8  # banks whose thumbnails may wait for being made
_QUIET = 1.0  # seconds without a request before the background goes on
_NICENESS = 15  # of the thread that makes them: a run comes first


def to_png(pixels: Pixels) -> bytes:
    """PNG of (H, W) or (H, W, 3) pixels, with nothing but these."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def to_base64(pixels: Pixels) -> str:
    """PNG as text, for JSON."""
    return base64.b64encode(to_png(pixels)).decode()


def read_sample(record: Record, what: str) -> Pixels:
    """The image or the mask (0 and 255) of a sample at its own size; only what was indexed is shown.

    A mask shows the lesions of all classes alike.
    """
    image = what == "image"
    path, digest = (record.image, record.image_sha256) if image else (record.mask, record.mask_sha256)
    pixels = read_image(path) if image else read_mask(path, record.labels)
    if pixel_digest(pixels) != digest:
        raise DataError(f"{path} has changed since it was indexed.")
    return pixels if image else (pixels > 0) * np.uint8(255)


def small_sample(record: Record, what: str, size: int) -> Pixels:
    """The same at training size, as training sees it."""
    found = read_sample(record, what)
    return resize_image(found, size) if what == "image" else resize_mask(found, size)


def read_depth(folder: Path, name: str) -> Pixels:
    """A depth map of stage 1 with 8 bits, near is bright."""
    levels, _ = read_grey(inside(folder, f"{name}.png"), deep=True)
    return (levels.astype(np.float32) * (255 / 65535)).round().astype(np.uint8)


class Thumbnails:
    """JPEGs by key, made once: in a folder if there is one, else a bounded number in memory.

    Args:
        folder: is made if needed; None: nothing is written.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError:  # a disk that may only be read
                self.folder = None
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._waiting: deque[Iterable[tuple[str, Callable[[], Pixels]]]] = deque(maxlen=_WAITING)
        self._wake, self._lock = threading.Event(), threading.Lock()
        self._asked = 0.0  # when a page asked last
        self._thread: threading.Thread | None = None

    def get(self, key: str, read: Callable[[], Pixels]) -> bytes:
        """The JPEG with a key, a hexadecimal digest; `read` gives its pixels if it is not made yet."""
        self._asked = time.monotonic()
        return self._get(key, read)

    def _get(self, key: str, read: Callable[[], Pixels]) -> bytes:
        with self._lock:
            if key in self._memory:
                self._memory.move_to_end(key)
                return self._memory[key]
        path = None if self.folder is None else self.folder / key[:2] / f"{key}.jpg"
        if path is not None and path.exists():
            content = path.read_bytes()
        else:
            content = _jpeg(read())
            if path is not None:
                with suppress(OSError):  # full, or another thread was faster
                    path.parent.mkdir(exist_ok=True)
                    with written(path) as temporary:
                        temporary.write_bytes(content)
        with self._lock:
            self._memory[key] = content
            while len(self._memory) > _IN_MEMORY:
                self._memory.popitem(last=False)
        return content

    def prepare(self, wanted: Iterable[tuple[str, Callable[[], Pixels]]]) -> None:
        """Make thumbnails in the background, in this order, while no page asks for any.

        Those that exist cost nothing. The one bank that was asked for last comes first, and what is wanted
        is read by the background.
        """
        if self.folder is None:
            return
        self._waiting.appendleft(wanted)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="thumbnails", daemon=True)
                self._thread.start()
        self._wake.set()

    def _work(self) -> None:
        with suppress(OSError, AttributeError):  # on Linux, niceness belongs to a thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._waiting:
                for key, read in self._waiting.popleft():
                    if self.folder is not None and not (self.folder / key[:2] / f"{key}.jpg").exists():
                        while (pause := self._asked + _QUIET - time.monotonic()) > 0:
                            time.sleep(pause)
                        with suppress(DataError, OSError):  # whoever asks for it gets the message
                            self._get(key, read)


def _jpeg(pixels: Pixels) -> bytes:
    picture = Image.fromarray(pixels)
    picture.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=_QUALITY)
    return buffer.getvalue()
