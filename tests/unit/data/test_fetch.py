"""Downloads from a server on the loopback that can do everything wrong."""

import errno
import hashlib
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mcpmix.core.errors import DataError, StorageError
from mcpmix.data import fetch as download
from mcpmix.data.fetch import fetch, refuse_offline, remote_size, remote_text

BODY = bytes(range(256)) * 20_000  # 5.12 MB
DIGEST = hashlib.sha256(BODY).hexdigest()


class Server:
    """What the server does, and what it was asked."""

    def __init__(self):
        self.body = BODY
        self.ranges = True
        self.cut = []  # after how many bytes to break off, one for each answer
        self.status = []  # answers instead of the file
        self.asked = []
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    state: Server

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(200, len(self.state.body))

    def answer(self, status, length, **extra):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        for name, value in extra.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_GET(self):
        self.state.asked.append(self.headers.get("Range"))
        places = {"moved": self.state.url + "/set.zip", "odd": "ftp://127.0.0.1/set.zip"}
        place = places.get(self.path.split("/")[1])
        if self.state.status:
            self.answer(self.state.status.pop(0), 0)
        elif place is not None:
            self.answer(302, 0, Location=place)
        else:
            self.give_file()

    def give_file(self):
        state, size = self.state, len(self.state.body)
        wanted = self.headers.get("Range") if state.ranges else None
        if wanted is None:
            self.answer(200, size)
            start = 0
        else:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= size:
                self.answer(416, 0, Content_Range=f"bytes */{size}")
                return
            self.answer(206, size - start, Content_Range=f"bytes {start}-{size - 1}/{size}")
        self.wfile.write(state.body[start:][: state.cut.pop(0)] if state.cut else state.body[start:])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("MCPMIX_OFFLINE", "0")
    state = Server()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"state": state})) as running:
        running.daemon_threads = True
        state.url = f"http://127.0.0.1:{running.server_port}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        running.shutdown()
        thread.join()


def names(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_small_text(server):
    server.body = b"Metadata-Version: 2.4\n"
    assert remote_text(server.url + "/one.whl.metadata") == server.body
    server.status = [404]
    assert remote_text(server.url + "/one.whl.metadata") is None


def test_a_whole_file(server, tmp_path):
    file = fetch(server.url + "/a/set.zip", tmp_path / "new" / "folder", sha256=DIGEST.upper())
    assert file.read_bytes() == BODY
    assert names(file.parent) == ["set.zip"]
    assert server.asked == [None]
    assert fetch(server.url + "/a/set.zip", file.parent, sha256=DIGEST) == file
    assert server.asked == [None]  # nothing was asked
    assert remote_size(server.url + "/set.zip") == len(BODY)


def test_md5_where_the_publisher_gives_no_better_one(server, tmp_path):
    md5 = hashlib.md5(BODY).hexdigest()
    for _ in range(2):
        assert fetch(server.url + "/set.zip", tmp_path, md5=md5).read_bytes() == BODY


def test_a_file_that_is_there_must_have_its_digest(server, tmp_path):
    (tmp_path / "set.zip").write_bytes(BODY[:-1])
    with pytest.raises(DataError, match=r"is there, but is incomplete or another file: .*\(sha256\)"):
        fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST)
    assert server.asked == []


def test_an_interruption_is_overcome_by_going_on(server, tmp_path):
    server.cut = [1_000_000, 2_000_000]
    assert fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST).read_bytes() == BODY
    assert server.asked == [None, "bytes=1000000-", "bytes=3000000-"]


def test_a_later_call_goes_on(server, tmp_path):
    server.cut = [1_000_000]
    with pytest.raises(
        DataError, match=r"ended after 1000000 of 5120000 bytes.*1\.0 MB are kept in set\.zip\.part"
    ):
        fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST, attempts=1)
    assert names(tmp_path) == ["set.zip.part"]
    fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST)
    assert server.asked == [None, "bytes=1000000-"]
    assert names(tmp_path) == ["set.zip"]


def test_a_server_without_ranges_starts_anew(server, tmp_path):
    server.ranges = False
    server.cut = [1_000_000]
    fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST)
    assert server.asked == [None, "bytes=1000000-"]


def test_halves_of_two_files_never_get_their_name(server, tmp_path):
    server.cut = [1_000_000]
    with pytest.raises(DataError):
        fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST, attempts=1)
    server.body = BODY[::-1]
    digest = hashlib.sha256(server.body).hexdigest()
    with pytest.raises(DataError, match="It was removed: try again"):
        fetch(server.url + "/set.zip", tmp_path, sha256=digest)
    assert names(tmp_path) == []
    assert fetch(server.url + "/set.zip", tmp_path, sha256=digest).read_bytes() == BODY[::-1]


def test_complete_but_not_named_yet(server, tmp_path):
    server.cut = [len(BODY) - 1]
    with pytest.raises(DataError):
        fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST, attempts=1)
    (tmp_path / "set.zip.part").write_bytes(BODY)
    assert fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST).read_bytes() == BODY
    assert server.asked[1:] == [f"bytes={len(BODY)}-"]


def test_a_kill_just_before_it_gets_its_name_costs_nothing(server, tmp_path, monkeypatch):
    replace = Path.replace

    def kill(self, target):
        if self.suffix == ".part":
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST)
    assert fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST).read_bytes() == BODY
    assert server.asked == [None, f"bytes={len(BODY)}-"]


def test_longer_than_the_file_on_the_server(server, tmp_path):
    server.cut = [1000]
    with pytest.raises(DataError):
        fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST, attempts=1)
    (tmp_path / "set.zip.part").write_bytes(BODY + b"more")
    assert fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST).read_bytes() == BODY


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_another_content_is_removed(server, tmp_path, kind):
    with pytest.raises(DataError, match=rf"has the {kind} [0-9a-f]+\. Expected 00.*It was removed"):
        fetch(server.url + "/set.zip", tmp_path, **{kind: "00"})
    assert names(tmp_path) == []


def test_not_found(server, tmp_path):
    server.status = [404]
    with pytest.raises(DataError, match=r"answered 404 Not Found\. The address may have changed"):
        fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST)
    assert len(server.asked) == 1  # asking again would not help


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.status = [503, 500]
    assert fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST).read_bytes() == BODY
    server.status = [503]
    with pytest.raises(DataError, match="answered 503"):
        fetch(server.url + "/other.zip", tmp_path, sha256=DIGEST, attempts=1)


def test_a_moved_file_is_followed(server, tmp_path):
    assert fetch(server.url + "/moved/set.zip", tmp_path, sha256=DIGEST).read_bytes() == BODY


def test_a_redirect_to_something_else_is_not(server, tmp_path):
    with pytest.raises(DataError, match="which is not safe to follow"):
        fetch(server.url + "/odd/set.zip", tmp_path, sha256=DIGEST)


def test_https_never_falls_back_to_http():
    request = urllib.request.Request("https://example.org/set.zip")
    follow = download._Redirects().redirect_request
    with pytest.raises(DataError, match=r"which is not safe to follow\. Expected https"):
        follow(request, None, 302, "Found", {}, "http://example.org/set.zip")
    assert follow(request, None, 302, "Found", {}, "https://example.org/b").full_url.endswith("/b")


def test_nobody_listens(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("MCPMIX_OFFLINE", "0")
    with pytest.raises(DataError, match=r"the connection failed \(.*run the same command again"):
        fetch("http://127.0.0.1:9/set.zip", tmp_path)
    assert remote_size("http://127.0.0.1:9/set.zip") is None
    assert remote_text("http://127.0.0.1:9/set.zip") is None


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a", "https://example.org/"])
def test_other_addresses(url, tmp_path, monkeypatch):
    monkeypatch.setenv("MCPMIX_OFFLINE", "0")
    with pytest.raises(DataError, match=r"cannot be downloaded|names no file"):
        fetch(url, tmp_path)


def test_no_room(server, tmp_path, monkeypatch):
    usage = download.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    with pytest.raises(StorageError, match=r"has 1 MB free, and 5 MB are still to come"):
        fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST)


def test_the_disk_fills_up(server, tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "_save", full)
    with pytest.raises(StorageError, match="is full"):
        fetch(server.url + "/set.zip", tmp_path, sha256=DIGEST)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, ""),
        ({"MCPMIX_OFFLINE": "1"}, "MCPMIX_OFFLINE=1 forbids"),
        ({"HF_HUB_OFFLINE": "True"}, "HF_HUB_OFFLINE=True forbids"),
        ({"HF_HUB_OFFLINE": "1", "MCPMIX_OFFLINE": "0"}, ""),
        ({"HF_HUB_OFFLINE": "0", "MCPMIX_OFFLINE": "yes"}, "MCPMIX_OFFLINE=yes forbids"),
    ],
)
def test_who_wants_to_stay_offline_does(given, refused, tmp_path, monkeypatch):
    if not refused:
        refuse_offline(given)
        return
    for name in ("MCPMIX_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=refused):
        fetch("http://127.0.0.1:9/set.zip", tmp_path / "new")
    with pytest.raises(DataError, match=refused):
        remote_size("http://127.0.0.1:9/set.zip")
    assert not (tmp_path / "new").exists()
