"""Storage that only lets read, for tests that may run as root."""

import builtins
import errno
import io
import os
from pathlib import Path


def forbid_writing(monkeypatch, folder):
    """Let every change below `folder` fail as it does on a read-only file system."""
    home = os.path.realpath(folder)

    def refuse(path):
        if isinstance(path, str | bytes | os.PathLike) and Path(os.fsdecode(path)).absolute().is_relative_to(
            home
        ):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fsdecode(path))

    def guard_open(real):
        def opened(file, mode="r", *arguments, **options):
            if set(mode) & set("wax+"):
                refuse(file)
            return real(file, mode, *arguments, **options)

        return opened

    def guard_low(file, flags, *arguments, **options):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse(file)
        return real_low(file, flags, *arguments, **options)

    def guard(real):
        def changed(path, *arguments, **options):
            if not (real is real_mkdir and os.path.isdir(path)):  # noqa: PTH112  # existing: EEXIST comes first
                refuse(path)
            return real(path, *arguments, **options)

        return changed

    real_low, real_mkdir = os.open, os.mkdir
    monkeypatch.setattr(io, "open", guard_open(io.open))
    monkeypatch.setattr(builtins, "open", guard_open(builtins.open))
    monkeypatch.setattr(os, "open", guard_low)
    for name in ("mkdir", "replace", "rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, guard(getattr(os, name)))
