import csv
import functools
import hashlib
import io
import shutil
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image


def test_phantom_folder_and_sheet_show_the_same_frames(mcpmix, tmp_path):
    done = mcpmix(
        "data", "phantom", "--out", tmp_path / "set", "--sheet", tmp_path / "sheet.png", "--patients", 2,
        "--frames", 3, "--size", 32, "--seed", 5,
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = list(csv.DictReader((tmp_path / "set" / "groups.csv").open()))
    assert len(rows) == 6
    assert len({row["group"] for row in rows}) == 2
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape == (2 * 32 + 2, 3 * 32 + 2 * 2, 3)
    for number, row in enumerate(rows):
        image, mask = (
            np.asarray(Image.open(tmp_path / "set" / kind / f"{row['id']}.png"))
            for kind in ("images", "masks")
        )
        assert set(np.unique(mask)) <= {0, 255}
        top, left = number // 3 * 34, number % 3 * 34
        differ = (sheet[top : top + 32, left : left + 32] != image).any(axis=2)
        assert differ.any()  # the outline
        assert not (differ & (mask > 0)).any()  # and nothing else
        assert differ.mean() < 0.2


def test_phantom_folder_can_be_made_again_but_not_mixed(mcpmix, phantom_folder):
    same = ("data", "phantom", "--out", phantom_folder, "--patients", 4, "--frames", 2, "--size", 32)
    assert mcpmix(*same).code == 0
    done = mcpmix(*same, "--seed", 1)
    assert done.code == 5
    assert "holds another phantom set" in done.err


def test_phantom_does_not_write_between_other_files(mcpmix, tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    done = mcpmix("data", "phantom", "--out", tmp_path)
    assert done.code == 5
    assert "is not empty" in done.err


def test_phantom_needs_a_place(mcpmix):
    done = mcpmix("data", "phantom")
    assert done.code == 2
    assert "--out" in done.err


def test_list_shows_licences_and_traps(mcpmix):
    done = mcpmix("data", "list")
    assert done.code == 0, done.err
    for text in ("cvc-clinicdb: CVC-ClinicDB (CVC-612); 612 images", "licence: research and education only",
                 "trap: frames of one sequence look alike", "piccolo: ", "isic-2017: "):  # fmt: skip
        assert text in done.out
    one = mcpmix("data", "list", "kvasir-seg")
    assert "kvasir-seg: Kvasir-SEG; 1000 images" in one.out
    assert "piccolo" not in one.out


def test_list_of_an_unknown_set(mcpmix):
    done = mcpmix("data", "list", "kvasirseg")
    assert done.code == 2
    assert "did you mean kvasir-seg?" in done.err


def test_convert_there_and_back(mcpmix, phantom_folder, tmp_path):
    done = mcpmix("data", "convert", phantom_folder, tmp_path / "Dataset501_Phantom", "--to", "nnunet")
    assert done.code == 0, done.err
    assert "8 images of 4 groups" in done.out
    back = mcpmix(
        "data", "convert", tmp_path / "Dataset501_Phantom", tmp_path / "back", "--from", "nnunet", "--to",
        "folder",
    )  # fmt: skip
    assert back.code == 0, back.err
    for kind in ("images", "masks"):
        for path in (phantom_folder / kind).iterdir():
            copy = np.asarray(Image.open(tmp_path / "back" / kind / path.name))
            original = np.asarray(Image.open(path))
            assert (
                np.array_equal(copy > 0, original > 0) if kind == "masks" else np.array_equal(copy, original)
            )
    assert (tmp_path / "back" / "groups.csv").read_text() == (phantom_folder / "groups.csv").read_text()


def test_convert_says_what_it_knows(mcpmix, phantom_folder, tmp_path):
    done = mcpmix("data", "convert", phantom_folder, tmp_path / "x", "--to", "coco")
    assert done.code == 2
    assert "folder, manifest, nnunet, imagefolder" in done.err.replace("\n", " ")
    done = mcpmix("data", "convert", phantom_folder, tmp_path / "x", "--from", "coco")
    assert done.code == 2
    assert "no source 'coco'" in done.err


def test_groups_of_images_that_look_alike(mcpmix, phantom_folder, tmp_path):
    images = phantom_folder / "images"
    (images / "p009_f01.png").write_bytes((images / "p000_f00.png").read_bytes())
    (phantom_folder / "groups.csv").unlink()
    done = mcpmix("data", "groups", phantom_folder, tmp_path / "groups.csv")
    assert done.code == 0, done.err
    group = {row["id"]: row["group"] for row in csv.DictReader((tmp_path / "groups.csv").open())}
    assert len(group) == 8
    assert group["p009_f01"] == group["p000_f00"] == "p000_f00"
    assert f"8 images in {len(set(group.values()))} groups" in done.out
    assert "only near-duplicates were grouped" in done.out
    page = (tmp_path / "groups.html").read_text()
    assert page.count("<img ") == 8
    assert "p009_f01" in page
    assert {row["guessed"] for row in csv.DictReader((tmp_path / "groups.csv").open())} == {"yes"}
    assert "exists" in mcpmix("data", "groups", phantom_folder, tmp_path / "groups.csv").err


# --- get ---------------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """The published archive of Kvasir-SEG on the loopback, with other pixels."""
    for name in ("HF_HUB_OFFLINE", "MCPMIX_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    for kind in ("images", "masks"):
        path = tmp_path / "tree" / "Kvasir-SEG" / kind / "cju0qkwl35piu0993l0dewei2.jpg"
        path.parent.mkdir(parents=True)
        Image.new("L", (32, 32), 255 if kind == "masks" else 90).save(path)
    shutil.make_archive(str(tmp_path / "www" / "kvasir-seg"), "zip", tmp_path / "tree")
    serve = functools.partial(Quiet, directory=str(tmp_path / "www"))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_get_shows_the_terms_checks_the_digest_and_leads_to_init(mcpmix, mirror, tmp_path):
    digest = hashlib.sha256((tmp_path / "www" / "kvasir-seg.zip").read_bytes()).hexdigest()
    arguments = ("data", "get", "kvasir-seg", "--mirror", mirror, "--to", tmp_path / "here", "--yes")
    wrong = mcpmix(*arguments)
    assert wrong.code == 3
    assert "Expected 03b30e21d584e04facf49397a2576738fd626815771afbbf788f74a7153478f7" in wrong.err
    assert not (tmp_path / "here" / "kvasir-seg.zip").exists()
    done = mcpmix(*arguments, "--sha256", digest)
    assert done.code == 0, done.err
    for text in ("licence: research and education", "cite: Jha et al.", f"{mirror}kvasir-seg.zip (0.0 MB)",
                 f"sha256 {digest} agrees"):  # fmt: skip
        assert text in done.out
    made = mcpmix("init", tmp_path / "study", "--root", tmp_path / "here")
    assert made.code == 0, made.err
    assert "source: kvasir-seg" in made.out
    assert "1 images with masks" in made.out


def test_get_asks_and_takes_no_for_an_answer(mcpmix, mirror, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    done = mcpmix("data", "get", "kvasir-seg", "--mirror", mirror, "--to", tmp_path / "here")
    assert done.code == 1
    assert "accept these terms?" in done.out
    assert not (tmp_path / "here").exists()


def test_get_says_whom_to_ask(mcpmix):
    for name, text in (
        ("piccolo", "solicitudes.biobancovasco@bioef.eus"),
        ("cvc-clinicdb", "grand-challenge"),
    ):
        done = mcpmix("data", "get", name)
        assert done.code == 3
        assert "has no open download" in done.err
        assert text in done.err


@pytest.mark.parametrize("variable", ["MCPMIX_OFFLINE", "HF_HUB_OFFLINE"])
def test_get_stays_offline_if_the_user_says_so(mcpmix, mirror, tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    done = mcpmix("data", "get", "kvasir-seg", "--mirror", mirror, "--to", tmp_path / "here", "--yes")
    assert done.code == 3
    assert f"{variable}=1 forbids connections" in done.err


@pytest.mark.parametrize(
    ("name", "digest"),
    [("isic-2017", "0" * 64), ("kvasir-seg", "12"), ("kvasir-seg", "other.zip=" + "0" * 64)],
)
def test_get_explains_digests(mcpmix, mirror, name, digest):
    done = mcpmix("data", "get", name, "--mirror", mirror, "--yes", "--sha256", digest)
    assert done.code == 2
    assert "64 hexadecimal" in done.err.replace("\n", " ").replace("│", "").replace("  ", " ")


def test_no_other_command_opens_a_connection(mcpmix, config, monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for command in (("data", "list"), ("check", config), ("data", "get", "piccolo")):
        assert mcpmix(*command).code in (0, 3)
