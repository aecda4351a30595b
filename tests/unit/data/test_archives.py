"""Archives that are what they say, and archives that are not."""

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from mcpmix.core.errors import DataError, StorageError
from mcpmix.data import archives
from mcpmix.data.archives import Limits, folder_of, is_archive, unpack

FILES = {"set/images/a.png": b"image", "set/masks/a.png": b"mask", "set/readme.txt": b"read me" * 100}


def as_zip(path, files=FILES):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def as_tar(path, files=FILES):
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o7777
            file.addfile(info, io.BytesIO(content))
    return path


def pack(path, files=FILES):
    return (as_zip if path.suffix == ".zip" else as_tar)(path, files)


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def left_behind(folder):
    """All that is not a lock."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.TGZ", "a.tar.bz2"])
def test_every_kind_is_unpacked_once_beside_itself(tmp_path, name):
    source = tmp_path / name
    pack(tmp_path / name.lower()).rename(source)
    folder = unpack([source])
    assert folder.parent == tmp_path
    assert folder.name.startswith(f"{name}.unpacked-")
    assert tree(folder) == FILES
    assert folder_of(source) == folder / "set"
    before = (folder / "set" / "readme.txt").stat().st_mtime_ns
    assert unpack([source]) == folder
    assert (folder / "set" / "readme.txt").stat().st_mtime_ns == before
    mode = (folder / "set" / "images" / "a.png").stat().st_mode
    assert not mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)


def test_another_content_gets_another_folder(tmp_path):
    first = unpack([pack(tmp_path / "a.zip")])
    os.utime(pack(tmp_path / "a.zip", {"b.txt": b"b"}), ns=(1, 1))
    second = unpack([tmp_path / "a.zip"])
    assert first != second
    assert tree(second) == {"b.txt": b"b"}


def test_several_archives_go_into_one_folder(tmp_path):
    one, two = pack(tmp_path / "x.zip", {"x/1": b"1"}), pack(tmp_path / "y.tar.gz", {"y/2": b"2"})
    folder = unpack([one, two])
    assert folder.name.startswith("archives.unpacked-")
    assert tree(folder) == {"x/1": b"1", "y/2": b"2"}


def test_a_folder_is_itself_and_a_cache_may_be_named(tmp_path, monkeypatch):
    assert folder_of(tmp_path) == tmp_path
    assert not is_archive(tmp_path)
    monkeypatch.setenv("MCPMIX_CACHE", str(tmp_path / "cache"))
    assert unpack([pack(tmp_path / "a.zip")]).parent == tmp_path / "cache"


def test_a_read_only_place_names_the_way_out(tmp_path, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    source = pack(tmp_path / "a.zip")
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match=r"Cannot write to .*MCPMIX_CACHE"):
        unpack([source])


def test_packers_on_windows_and_macs(tmp_path):
    source = tmp_path / "a.zip"
    as_zip(source, {"__MACOSX/._a": b"x", "set/": b""})
    with zipfile.ZipFile(source, "a") as file:
        file.writestr("set/b", b"b")
    content = source.read_bytes().replace(b"set/b", b"set\\b")
    source.write_bytes(content)
    assert tree(unpack([source])) == {"set/b": b"b"}


# --- harm --------------------------------------------------------------------------------------------------


EVIL = [
    "../evil",
    "set/../../evil",
    "/tmp/evil",
    "C:\\evil",
    "..\\evil",
    "set/" + "n" * 300,
    "a/" * 600 + "b",
]


@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
@pytest.mark.parametrize("name", EVIL)
def test_names_that_lead_elsewhere_are_refused_and_nothing_stays(tmp_path, ending, name):
    inner = tmp_path / "inner"
    inner.mkdir()
    source = pack(inner / f"a.{ending}", {"fine.txt": b"fine", name: b"evil"})
    with pytest.raises(DataError, match=r"is refused, and nothing of it was kept"):
        unpack([source])
    assert left_behind(inner) == [source.name]
    assert left_behind(tmp_path) == ["inner"]
    assert not Path("/tmp/evil").exists()


def linked_tar(path, kind, target):
    with tarfile.open(path, "w") as file:
        link = tarfile.TarInfo("set")
        link.type, link.linkname = kind, target
        file.addfile(link)
        inside = tarfile.TarInfo("set/evil")
        inside.size = 4
        file.addfile(inside, io.BytesIO(b"evil"))
    return path


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar(tmp_path, kind):
    (tmp_path / "outside").mkdir()
    source = linked_tar(tmp_path / "a.tar", kind, "../outside")
    with pytest.raises(DataError, match="'set' is a link, a device or a sparse file"):
        unpack([source])
    assert left_behind(tmp_path) == ["a.tar", "outside"]
    assert list((tmp_path / "outside").iterdir()) == []


def test_links_and_passwords_in_a_zip_are_all_named(tmp_path):
    source = tmp_path / "a.zip"
    with zipfile.ZipFile(source, "w") as file:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, "../outside")
        file.writestr("../up", b"")
        file.writestr("strange", b"x", zipfile.ZIP_LZMA)
    with pytest.raises(DataError) as caught:
        unpack([source])
    for text in ("'link' is a link", "'../up' leads out", "'strange' is packed by method 14"):
        assert text in str(caught.value)
    secret = as_zip(tmp_path / "b.zip", {"a": b"x"})
    content = bytearray(secret.read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    secret.write_bytes(content)
    with pytest.raises(DataError, match="needs a password"):
        unpack([secret])


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.bz2"])
def test_bombs_are_refused_by_ratio_size_and_number(tmp_path, name):
    source = pack(tmp_path / name, {"zeros": bytes(3_000_000)})
    assert source.stat().st_size < 10_000
    for limits in (Limits(free=1_000_000), Limits(size=1_000_000), Limits(files=0)):
        with pytest.raises(DataError, match="unpacks to"):
            unpack([source], limits=limits)
    assert left_behind(tmp_path) == [name]
    assert tree(unpack([source])) == {"zeros": bytes(3_000_000)}  # small enough to be no harm


def test_a_zip_that_lies_about_its_size_is_stopped_while_it_is_written(tmp_path):
    source = as_zip(tmp_path / "a.zip", {"zeros": bytes(3_000_000)})
    content = source.read_bytes().replace(struct.pack("<L", 3_000_000), struct.pack("<L", 10))
    source.write_bytes(content)
    with pytest.raises(DataError, match=r"unpacks to|cannot be unpacked"):
        unpack([source], limits=Limits(free=1_000_000))
    assert left_behind(tmp_path) == ["a.zip"]


def test_a_zip_that_claims_terabytes(tmp_path):
    source = as_zip(tmp_path / "a.zip", {"zeros": bytes(1000)})
    place = source.read_bytes().index(b"PK\1\2") + 24
    content = bytearray(source.read_bytes())
    content[place : place + 4] = struct.pack("<L", 0xFFFFFFFE)
    source.write_bytes(content)
    with pytest.raises(DataError, match="unpacks to 4295 MB"):
        unpack([source])


def test_a_zip_with_an_endless_list_of_names(tmp_path, monkeypatch):
    source = as_zip(tmp_path / "a.zip", {f"{number:03}" * 20: b"" for number in range(1000)})
    monkeypatch.setattr(archives, "_LARGEST_READ", 50_000)
    with pytest.raises(DataError, match="a list of names has 0 MB"):
        unpack([source])
    assert left_behind(tmp_path) == ["a.zip"]


def test_a_tar_whose_header_claims_gigabytes(tmp_path):
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 3 * 10**9
    source = tmp_path / "a.tar.gz"
    with gzip.open(source, "wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.write(bytes(1_000_000))
    with pytest.raises(DataError, match=r"a\.tar\.gz cannot be unpacked: a header .* has 3000 MB"):
        unpack([source])


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.bz2"])
def test_damaged_archives_end_in_a_message(tmp_path, name):
    source = pack(tmp_path / name, {f"f{number}": os.urandom(700) for number in range(4)})
    whole = source.read_bytes()
    step = max(64, len(whole) // 24)
    for length in range(0, len(whole), step):
        folder, message = attempt(source, whole[:length])
        if folder is None:
            assert "fetch it again" in message
        else:  # a tar that ends between two members has no way to tell
            assert name == "a.tar"
            assert all(len(content) == 700 for content in tree(folder).values())
    for place in range(0, len(whole), step):
        folder, message = attempt(source, whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        assert folder is not None or name in message


def attempt(source, content):
    """Where it was unpacked to, or the message."""
    source.write_bytes(content)
    os.utime(source, ns=(0, int.from_bytes(os.urandom(5), "big")))  # digests are remembered by size and time
    try:
        return unpack([source]), ""
    except DataError as error:
        return None, str(error)


def test_a_name_that_stands_twice(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("a", b"2")
    as_zip(tmp_path / "b.zip", {"a": b"file", "a/b": b"and folder"})
    for name in ("a.zip", "b.zip"):
        with pytest.raises(DataError, match="stands for two things"):
            unpack([tmp_path / name])


def test_kinds_that_cannot_be_read_say_so(tmp_path):
    for name in ("CVC-ClinicDB.rar", "a.7z"):
        (tmp_path / name).write_bytes(b"Rar!")
        with pytest.raises(
            DataError, match=r"archive, which cannot be unpacked here. Unpack it with another"
        ):
            folder_of(tmp_path / name)


def test_no_room(tmp_path, monkeypatch):
    source = pack(tmp_path / "a.zip")
    usage = archives.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(StorageError, match="MB free"):
        unpack([source])
