"""Pages and answers without a socket; attacks on them are in test_guard.py."""

import re
import shutil
import socket
from io import BytesIO

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from tests.unit.studio.conftest import TOKEN

from mcpmix.core.errors import DataError, StorageError
from mcpmix.data.sample import read_image, read_mask
from mcpmix.studio.runs import Runs
from mcpmix.studio.server import Studio, address, bind, build_app

HOST = "http://127.0.0.1"


@pytest.fixture
def client(runs):
    return TestClient(build_app(runs, TOKEN), HOST, headers={"x-token": TOKEN, "origin": HOST})


@pytest.fixture
def run(runs):
    return Runs(runs).all()[0]


def pixels(answer):
    assert answer.status_code == 200, answer.text
    with Image.open(BytesIO(answer.content)) as image:
        return np.asarray(image)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(StorageError, match="absent is not a folder"):
        Studio(tmp_path / "absent", "token")


def test_a_problem_is_a_page_for_people_and_json_for_the_script(client, run):
    path = f"/api/runs/{run.id}/scores?metric=dice"
    assert client.get(path).json()["error"].startswith("The metric is 'dice'; expected one of ")
    page = client.get(path, headers={"accept": "text/html"})
    assert page.status_code == 400
    assert "<h1>Not possible</h1>" in page.text
    assert "The metric is &#39;dice&#39;" in page.text
    absent = client.get(f"/api/runs/{run.id}/pairs/12")
    assert absent.status_code == 404
    assert absent.json()["error"].startswith("There is no such thing here")


def test_the_tables_of_the_report_are_on_the_page_of_results(client, run):
    page = client.get(f"/runs/{run.id}/results").text
    assert page.index("Test images") < page.index("New images of known groups")
    table = (run.folder / "report" / "table.md").read_text(encoding="utf-8")
    (figure,) = re.findall(r"\| Full-Sup \|[^|]+\|[^|]+\|[^|]+\|[^|]+\| ([^|*]+) \|", table)[:1]
    assert figure in page
    shutil.rmtree(run.folder / "report")
    page = client.get(f"/runs/{run.id}/results")
    assert page.status_code == 200
    assert figure not in page.text


def test_runs_are_compared_in_the_settings_that_differ(client, runs, run):
    shutil.copytree(runs / "trial", runs / "other")
    file = runs / "other" / "config.yaml"
    file.write_text(file.read_text().replace("epochs: 8", "epochs: 9"))
    other = next(each for each in Runs(runs).all() if each.name == "other")
    rows = re.findall(r"<code>([\w.]+)</code></th><td>(.*?)</td><td>(.*?)</td>",
                      client.get(f"/compare?run={run.id}&run={other.id}").text)  # fmt: skip
    assert rows == [("train.epochs", "8", "9")]
    assert "No setting differs." in client.get(f"/compare?run={run.id}&run={run.id}").text


def test_pictures_are_those_of_the_files(client, run, studio_run):
    record, tested = studio_run.index.part("train")[0], studio_run.index.part("test")[0]
    sample = f"/runs/{run.id}/sample"
    assert np.array_equal(pixels(client.get(f"{sample}/original?id={record.id}")), read_image(record.image))
    assert np.array_equal(pixels(client.get(f"{sample}/truth?id={record.id}")), read_mask(record.mask) * 255)
    size = run.size
    assert pixels(client.get(f"{sample}/image?id={record.id}")).shape == (size, size, 3)
    assert pixels(client.get(f"{sample}/depth?id={record.id}"))[0, -1] == 255
    marked = read_mask(run.folder / "evaluation" / "mcpmix" / "seed-1" / "predictions" / f"{tested.id}.png")
    shown = client.get(f"/runs/{run.id}/prediction?id={tested.id}&arm=mcpmix&seed=1")
    assert np.array_equal(pixels(shown), marked * 255)
    (first, *_) = sorted((run.folder / "pairs" / "images" / record.id).iterdir())
    assert np.array_equal(pixels(client.get(f"/runs/{run.id}/synthetic?number=0")), read_image(first))


def test_a_bank_that_moves_on_is_followed_and_few_are_kept(runs):
    studio = Studio(runs, TOKEN)
    for name in ("second", "third"):
        shutil.copytree(runs / "trial", runs / name)
    views = {run.name: run for run in studio.runs.all()}
    first = studio.bank(views["trial"])
    assert studio.bank(studio.runs.get(views["trial"].id)) is first
    with (runs / "trial" / "pairs" / "ledger.jsonl").open("a") as file:
        file.write((runs / "second" / "pairs" / "ledger.jsonl").read_text())
    assert len(studio.bank(views["trial"]).images) == 2 * len(studio.bank(views["second"]).images)
    studio.bank(views["third"])
    assert studio.bank(views["trial"]) is not first


def test_a_port_that_is_taken_is_passed_over(monkeypatch):
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("mcpmix.studio.server._PORTS", 1)
        with pytest.raises(DataError, match=rf"ports {port} to {port}: .*Name another port"):
            bind("127.0.0.1", port)
        monkeypatch.setattr("mcpmix.studio.server._PORTS", 20)
        with bind("127.0.0.1", port) as free:
            found = free.getsockname()[1]
            assert port < found < port + 20
            assert address(free, "secret") == f"http://127.0.0.1:{found}/?token=secret"


def test_an_address_of_version_six_stands_in_brackets(monkeypatch):
    with socket.socket() as listener:
        monkeypatch.setattr(socket.socket, "getsockname", lambda _: ("::1", 8471, 0, 0))
        assert address(listener, "secret") == "http://[::1]:8471/?token=secret"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (2 * 86400, "2 d")],
)
def test_a_duration_has_one_unit(tmp_path, seconds, text):
    assert Studio(tmp_path, TOKEN)._pages.from_string("{{ x | time }}").render(x=seconds) == text
