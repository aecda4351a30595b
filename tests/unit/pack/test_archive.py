import hashlib
import json
import tarfile

from mcpmix.pack.archive import write_archive
from mcpmix.pack.unpack import seal_of


def test_the_manifest_has_every_file_and_seals_itself(tmp_path):
    (tmp_path / "one.txt").write_text("one")
    manifest = write_archive(
        tmp_path / "new" / "box.tar", {"a/one.txt": tmp_path / "one.txt", "two": b"2"}, {"x": 1}
    )
    with tarfile.open(tmp_path / "new" / "box.tar") as archive:
        contents = {entry.name: archive.extractfile(entry).read() for entry in archive}

    assert json.loads(contents.pop("box/manifest.json")) == manifest
    assert manifest["seal"] == seal_of(manifest) != seal_of({**manifest, "x": 2})
    digests = {f"box/{name}": facts["sha256"] for name, facts in manifest["files"].items()}
    assert digests == {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    assert set(contents) == {"box/unpack.py", "box/a/one.txt", "box/two"}


def test_equal_input_gives_equal_bytes(tmp_path):
    for place in ("one", "other"):
        write_archive(tmp_path / place / "box.tar", {"file": b"text"}, {})

    assert (tmp_path / "one" / "box.tar").read_bytes() == (tmp_path / "other" / "box.tar").read_bytes()
