"""Writes a tar file whose manifest has the digest of every file, with a script that verifies them."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mcpmix import __version__
from mcpmix.core.errors import StorageError
from mcpmix.core.files import file_digest, storage_errors, written
from mcpmix.core.progress import SILENT, Progress
from mcpmix.pack import unpack
from mcpmix.pack.unpack import MANIFEST, seal_of

Members = Mapping[str, Path | bytes]
"""Names in the archive, with `/` between folders, to a file or to what is written."""


def write_archive(
    out: Path, members: Members, facts: Mapping[str, Any], progress: Progress = SILENT
) -> dict[str, Any]:
    """Write the members below a folder of the archive's name, with script and manifest; returns the latter.

    Args:
        facts: what the manifest says beside the files; `holds`, a sentence, and `missing`, a list of texts,
            are shown by the script.

    Raises:
        StorageError: `out` exists, or cannot be written.
    """
    if out.exists():
        raise StorageError(f"{out} exists already. Choose another name, or remove it.")
    members = {"unpack.py": Path(unpack.__file__), **members}
    with storage_errors(out.parent), progress.track(f"packing {out.name}", len(members)) as advance:
        files = {}
        for name, content in members.items():
            if isinstance(content, bytes):
                files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            else:
                files[name] = {"size": content.stat().st_size, "sha256": file_digest(content)}
        manifest = {"mcpmix": __version__, **facts, "files": files}
        manifest["seal"] = seal_of(manifest)
        written_first = {MANIFEST: json.dumps(manifest, indent=1, ensure_ascii=False).encode()}
        out.parent.mkdir(parents=True, exist_ok=True)
        with written(out) as temporary, tarfile.open(temporary, "w") as archive:
            for name, content in {**written_first, **members}.items():
                entry = tarfile.TarInfo(f"{out.stem}/{name}")  # no owner, no time: equal input, equal file
                entry.size = len(content) if isinstance(content, bytes) else content.stat().st_size
                with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
                    archive.addfile(entry, stream)
                advance()
    return manifest
