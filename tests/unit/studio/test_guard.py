"""Attacks over HTTP on a real server."""

import re
import socket
import threading
from urllib.parse import quote

import httpx
import pytest
from tests.helpers.finished_run import Outline
from tests.unit.studio.conftest import SCRIPT, TOKEN

from mcpmix.core.stage_folder import read_artifact
from mcpmix.generator.ledger import open_review, read_rows

OUTSIDE = [
    "../../../../etc/passwd",
    "..%2f..%2f..%2fetc%2fpasswd",
    "/etc/passwd",
    "....//etc/passwd",
    "%00",
    "C:\\x",
]
SECRET = "root:"


def plain(served, **options):
    return httpx.Client(base_url=served.url, timeout=60, **options)


def pages(run):
    inside = ("", "/flow", "/pairs", "/blind", "/training", "/results")
    return [
        "/",
        "/table",
        "/try",
        f"/compare?run={run}&run={run}",
        *(f"/runs/{run}{place}" for place in inside),
    ]


@pytest.fixture
def verdict(served):
    """A request that changes something."""
    return f"/api/runs/{served.run}/pairs/0/verdict", {"who": "Eve", "verdict": "reject"}


def judged(served):
    return open_review(read_artifact(served.runs / "trial" / "pairs")).rows


@pytest.mark.parametrize(
    "headers", [{}, {"x-token": "wrong"}, {"cookie": "mcpmix-00000000=wrong"}, {"x-token": "é"}]
)
def test_without_the_token_nothing_is_told(served, headers):
    with plain(served, headers={k: v.encode("latin-1") for k, v in headers.items()}) as client:
        for path in [*pages(served.run), "/static/studio.js", "/nowhere", f"/runs/{served.run}/review.csv"]:
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert "trial" not in answer.text
            assert TOKEN not in str(answer.headers)


def test_the_opened_address_gives_a_cookie_that_is_enough_to_read_but_not_to_write(served, verdict):
    with plain(served) as client:
        first = client.get(f"/?token={TOKEN}")
        assert first.status_code == 200
        assert "HttpOnly; SameSite=Strict" in first.headers["set-cookie"]
        assert client.get("/try").status_code == 200
        path, body = verdict
        assert client.post(path, json=body, headers={"origin": served.url}).status_code == 403
    assert judged(served) == []


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", None, "http://127.0.0.1:1", "http://127.0.0.1.evil.example"]
)
def test_another_origin_changes_nothing(served, verdict, origin):
    path, body = verdict
    headers = {"x-token": TOKEN} | ({} if origin is None else {"origin": origin})
    with plain(served, headers=headers) as client:
        for target, content in ((path, body), (f"/api/runs/{served.run}/blind", {"who": "Eve", "count": 2})):
            assert client.post(target, json=content).status_code == 403
        assert client.post(f"/api/predict?segmenter={served.run}:full-sup:0", content=b"x").status_code == 403
    assert judged(served) == []


def test_our_own_page_may(own, verdict):
    path, body = verdict
    with own.client() as client:
        assert client.post(path, json=body).status_code == 200
    assert [row["who"] for row in judged(own)] == ["Eve"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::", ""])
def test_a_name_that_is_not_ours_is_refused(served, host):
    with served.client(host=host) as client:
        assert client.get("/").status_code in (400, 421)
    with served.client(host="localhost:9000") as client:  # through a tunnel
        assert client.get("/").status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_unknown(served, method):
    with served.client() as client:
        assert client.request(method, "/").status_code == 405


def test_every_answer_has_a_strict_policy_and_pages_need_nothing_inline(served):
    with served.client() as client:
        for path in [*pages(served.run), "/static/studio.css", "/nowhere"]:
            answer = client.get(path)
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            if path in pages(served.run):
                assert answer.status_code == 200, path
                for tag, attributes in Outline(answer.text).elements:
                    assert tag != "script" or attributes["src"].startswith("/static/")
                    assert not [name for name in attributes if name.startswith("on") or name == "style"], path
                    targets = [attributes.get(name) or "/" for name in ("src", "href")]
                    assert all(re.match(r"/(?!/)|#|blob:", target) for target in targets), path
                if "<html" in answer.text:
                    assert "Research software" in answer.text


def test_scripts_in_names_are_shown_and_not_run(served):
    with served.client() as client:
        assert "&lt;script&gt;" in client.get(f"/runs/{served.run}").text
        for path in pages(served.run):
            assert SCRIPT not in client.get(path).text
        answer = client.get(f"/api/runs/{served.run}/pairs/1")
        assert SCRIPT in answer.json()["prompt"]
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("bad", OUTSIDE)
def test_no_parameter_leads_out_of_the_folders(served, bad):
    text = quote(bad, safe="%/.")
    run = served.run
    paths = [
        f"/runs/{text}",
        f"/runs/{text}/pairs",
        f"/runs/{text}/report",
        f"/grids/{text}",
        f"/grids/{text}/page",
        f"/static/{text}",
        f"/runs/{run}/sample/{text}?id=a",
        f"/{text}",
    ]
    paths += [
        f"/runs/{run}/sample/{what}?id={text}" for what in ("image", "mask", "original", "truth", "depth")
    ]
    paths += [f"/runs/{run}/prediction?id={text}&arm=full-sup&seed=0", f"/runs/{run}/thumbnail?id={text}"]
    sample = read_rows(served.runs / "trial" / "pairs")[0]["parent"]
    paths += [f"/runs/{run}/prediction?id={sample}&arm={text}&seed=0", f"/api/blind/{text}/0.png"]
    paths += [
        f"/runs/{run}/prediction?id={sample}&arm=full-sup&seed={text}",
        f"/api/runs/{run}/scores?part={text}",
    ]
    paths += [f"/api/runs/{run}/pairs/{text}", f"/runs/{run}/synthetic?number={text}", f"/compare?run={text}"]
    paths += [
        f"/api/runs/{run}/scores?metric={text}",
        f"/api/runs/{text}/logs",
        f"/runs/{run}/thumbnail?number={text}",
    ]
    with served.client() as client:
        for path in paths:
            answer = client.get(path)
            assert answer.status_code in (400, 404, 422), path
            assert SECRET not in answer.text
        assert client.post(f"/api/predict?segmenter={text}", content=b"x").status_code == 404


def test_a_ledger_or_a_link_that_leads_elsewhere_shows_nothing(serve, runs, tmp_path):
    pairs = runs / "trial" / "pairs"
    outside = tmp_path / "outside.png"
    first, second = (pairs / row["file"] for row in read_rows(pairs)[:2])
    outside.write_bytes(first.read_bytes())
    first.unlink()
    first.symlink_to(outside)
    ledger = pairs / "ledger.jsonl"
    ledger.write_text(
        ledger.read_text().replace(second.relative_to(pairs).as_posix(), "../../../outside.png")
    )
    served = serve(runs)
    with served.client() as client:
        for number in (0, 1):
            for path in (
                f"/runs/{served.run}/synthetic?number={number}",
                f"/runs/{served.run}/thumbnail?number={number}",
            ):
                answer = client.get(path)
                assert answer.status_code == 400, path
                assert "outside of" in answer.json()["error"]


def test_an_image_that_is_not_the_indexed_one_is_not_shown(serve, runs, tmp_path):
    index = runs / "trial" / "dataset" / "index.json"
    other = next((runs / "trial" / "pairs" / "images").rglob("*.png")).resolve()
    text = index.read_text()
    name = re.search(r'"image": "([^"]+)"', text)[1]
    index.write_text(text.replace(f'"image": "{name}"', f'"image": "{other}"'))
    served = serve(runs)
    sample = re.search(r'"id": "([^"]+)"', text)[1]
    with served.client() as client:
        answer = client.get(f"/runs/{served.run}/sample/original?id={sample}")
    assert answer.status_code == 400
    assert "changed since it was indexed" in answer.json()["error"]


def test_a_damaged_ledger_is_not_taken_for_something_absent(serve, runs):
    ledger = runs / "trial" / "pairs" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"parent"', '"paren"'))
    served = serve(runs)
    with served.client() as client:
        assert client.get(f"/runs/{served.run}/pairs").status_code == 200
        answer = client.get(f"/api/runs/{served.run}/pairs")
        assert answer.status_code == 400
        assert "ledger.jsonl is damaged after 0 bytes (KeyError('parent'))" in answer.json()["error"]


def test_two_gigabytes_are_refused_before_they_arrive(served):
    host, port = served.url.removeprefix("http://").split(":")
    head = f"POST /api/predict?segmenter={served.run}:full-sup:0 HTTP/1.1\r\nHost: {host}:{port}\r\n"
    head += f"X-Token: {TOKEN}\r\nOrigin: {served.url}\r\nContent-Length: 2147483648\r\n\r\n"
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_body_without_an_end_is_cut_off(served):
    def endless():
        for _ in range(60):
            yield bytes(1_000_000)

    with served.client() as client:
        try:
            status = client.post(
                f"/api/predict?segmenter={served.run}:full-sup:0", content=endless()
            ).status_code
        except httpx.TransportError:  # the server has closed the connection while we were still sending
            status = 413
        assert status == 413
        assert client.get("/").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"who": 3}',
        b'{"who": "E", "verdict": "x"}',
        b'{"who":"' + b"a" * 200 + b'","verdict":"accept"}',
    ],
)
def test_broken_judgements_are_refused(served, body):
    with served.client(**{"content-type": "application/json"}) as client:
        answer = client.post(f"/api/runs/{served.run}/pairs/0/verdict", content=body)
    assert answer.status_code in (400, 422)
    assert judged(served) == []


def test_read_only_writes_nothing(serve, runs, studio_run):
    served = serve(runs, read_only=True)
    before = sorted(path for path in runs.rglob("*"))
    with served.client() as client:
        for path, body in (
            (f"/api/runs/{served.run}/pairs/0/verdict", {"who": "Eve", "verdict": "reject"}),
            (f"/api/runs/{served.run}/blind", {"who": "Eve", "count": 2}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 409
            assert "--read-only" in answer.json()["error"]
        assert client.get(f"/runs/{served.run}/thumbnail?number=0").status_code == 200
        assert "Accept" not in client.get(f"/runs/{served.run}/pairs").text
    assert before == sorted(path for path in runs.rglob("*"))


def test_fifty_clients_at_once_while_the_run_writes(own):
    """Nobody gets half a row or an error, and the writer loses nothing."""
    log = own.runs / "trial" / "segmenter" / "full-sup" / "seed-0" / "log.jsonl"
    paths = [*pages(own.run), f"/api/runs/{own.run}/logs", f"/api/runs/{own.run}/pairs?limit=50"]
    paths += [f"/runs/{own.run}/thumbnail?number={number}" for number in range(6)]
    bad, stop = [], threading.Event()

    def write():
        epoch = 100
        with log.open("a") as file:
            while not stop.is_set():
                epoch += 1
                line = f'{{"epoch": {epoch}, "loss_real": 0.5}}\n'
                file.write(line[:9])
                file.flush()
                file.write(line[9:])
                file.flush()
                stop.wait(0.001)

    def visit(number):
        with own.client() as client:
            for place in range(4):
                path = paths[(number + 7 * place) % len(paths)]
                answer = client.get(path)
                if answer.status_code != 200:
                    bad.append((path, answer.status_code, answer.text[:200]))

    writer = threading.Thread(target=write)
    writer.start()
    visitors = [threading.Thread(target=visit, args=[number]) for number in range(50)]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    stop.set()
    writer.join()
    assert bad == []
    with own.client() as client:
        rows = client.get(f"/api/runs/{own.run}/logs").json()["cells"]["full-sup:0"]["rows"]
    assert [row["epoch"] for row in rows if row["epoch"] > 100] == list(range(101, 101 + len(rows) - 8))
