import csv
import io
import json
import math
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from tests.unit.studio.conftest import GROUP, PROMPT

from mcpmix.core.errors import DataError
from mcpmix.generator.ledger import open_review, read_rows
from mcpmix.studio.pairs import MOST_ITEMS, BankView, BlindTest, BlindTests, Filter, to_csv
from mcpmix.studio.runs import Runs


@pytest.fixture
def bank(runs):
    view = BankView(Runs(runs).all()[0])
    view.refresh()
    return view


def test_each_real_image_comes_before_its_counterparts(bank):
    page = bank.page(Filter(), 0, 100)
    rows = read_rows(bank.run.folder / "pairs")
    parents = list(dict.fromkeys(row["parent"] for row in rows))
    assert [item["parent"] for item in page["items"] if item["kind"] == "real"] == parents
    assert (page["total"], page["images"], page["numbers"]) == (4 + 12, 12, list(range(12)))
    assert [item["kind"] for item in page["items"][:5]] == ["real", *["synthetic"] * 3, "real"]
    assert page["items"][1] == bank.tile(bank.images[0], {})


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (Filter(state="left-out"), [1, 2]),
        (Filter(state="taken"), [0, *range(3, 12)]),
        (Filter(state="no such state"), []),
        (Filter(reason="copy"), [2]),
        (Filter(group=GROUP), list(range(6))),
        (Filter(prompt="a polyp"), [0, 3, 6, 9]),
        (Filter(prompt=PROMPT, state="taken"), [4, 5, 7, 8, 10, 11]),
        (Filter(score="alignment", low=0.5, high=0.8), [1, 4, 7, 10]),
        (Filter(score="no such score"), []),
        (Filter(text="no such id"), []),
    ],
)
def test_filters(bank, wanted, numbers):
    assert bank.page(wanted, 0, 100)["numbers"] == numbers


def test_judgements_change_what_is_taken(bank):
    bank.book.judge(bank.row(0), "Ada", "reject", "no vessels")
    bank.book.judge(bank.row(1), "Ada", "accept")
    assert bank.page(Filter(state="left-out"), 0, 9)["numbers"] == [0, 2]
    assert bank.page(Filter(state="accepted"), 0, 9)["numbers"] == [1]
    assert bank.page(Filter(state="unjudged"), 0, 9)["images"] == 10
    detail = bank.detail(0)
    assert (detail["taken"], detail["people"]) == (False, ["reject"])
    assert detail["said"][0] | {"when": ""} == {
        "who": "Ada",
        "when": "",
        "verdict": "reject",
        "word": "no vessels",
    }
    assert detail["seed"] == str(2**62)  # whole: a number would lose its last digits in a browser
    assert detail["nearest"] == [bank.images[-1].parent]


def test_choices(bank):
    choices = bank.choices()
    assert choices["reasons"] == ["alignment", "copy"]
    assert GROUP in choices["groups"]
    assert choices["prompts"] == ["a polyp", PROMPT]
    assert choices["scores"] == {"alignment": [0.4, 0.9]}


def test_a_bank_that_is_being_filled_grows_and_cannot_be_judged(runs):
    pairs = runs / "trial" / "pairs"
    lines = (pairs / "ledger.jsonl").read_text().splitlines(keepends=True)
    (pairs / "manifest.json").unlink()
    pairs = pairs.rename(pairs.with_name("pairs.partial"))
    bank = BankView(Runs(runs).all()[0])
    (pairs / "ledger.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    bank.refresh()
    assert len(bank.images) == 3
    with (pairs / "ledger.jsonl").open("a") as file:
        file.write(lines[3][20:])
    bank.refresh()
    assert [image.number for image in bank.images] == [0, 1, 2, 3]
    assert bank.row(3) == json.loads(lines[3])
    assert bank.page(Filter(), 0, 9)["images"] == 4
    with pytest.raises(DataError, match="not finished"):
        _ = bank.book
    (pairs / "ledger.jsonl").unlink()
    (pairs / "ledger.jsonl").write_text("".join(lines[4:6]))  # made anew
    bank.refresh()
    assert [image.file for image in bank.images] == [json.loads(line)["file"] for line in lines[4:6]]


def test_a_run_without_a_bank_has_an_empty_wall(runs):
    (runs / "trial" / "pairs").rename(runs / "gone")
    bank = BankView(Runs(runs).all()[0])
    bank.refresh()
    assert bank.page(Filter(), 0, 10)["total"] == 0


def test_twenty_thousand_counterparts_in_pages_and_little_memory(runs):
    pairs = runs / "trial" / "pairs"
    row = json.loads((pairs / "ledger.jsonl").read_text().splitlines()[0])
    names = ("alignment", "contrast", "distance_source", "distance_train", "picture_source", "mean", "spread")
    with (pairs / "ledger.jsonl").open("w") as file:
        for number in range(20_000):
            scores = {name: number / 20_000 + place for place, name in enumerate(names)}
            more = {"parent": f"p{number // 4:05}", "replica": number % 4, "scores": scores}
            more |= {"file": f"images/p{number // 4:05}/{number % 4}.png", "image_sha256": f"{number:064}"}
            file.write(json.dumps({**row, **more}) + "\n")
    tracemalloc.start()
    bank = BankView(Runs(runs).all()[0])
    bank.refresh()
    first = bank.page(Filter(), 0, 10_000)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(bank.images) == 20_000
    assert (first["total"], len(first["items"]), len(first["numbers"])) == (25_000, MOST_ITEMS, 20_000)
    last = bank.page(Filter(), 24_900, 200)
    assert (len(last["items"]), last["items"][-1]["number"], last["numbers"]) == (100, 19_999, None)
    assert bank.page(Filter(score="alignment", low=0.99995), 0, 10)["numbers"] == [19_999]
    assert kept < 60e6
    assert peak < 150e6  # of the 300 MB that the whole server may take


def test_the_review_as_a_table(bank):
    bank.book.judge(bank.row(0), "=cmd|' /C calc'!A0", "reject", 'a "word", with\na line')
    bank.book.note_blind("Ada", {"shown": 4, "hits": 3})
    first, second = csv.DictReader(io.StringIO(to_csv(bank.book.rows())))
    assert first["who"] == "'=cmd|' /C calc'!A0"  # a spreadsheet takes it for text
    assert (first["verdict"], first["word"]) == ("reject", 'a "word", with\na line')
    assert (second["kind"], second["hits"], second["file"]) == ("blind", "3", "")


def wilson(hits, shown, z=1.959963984540054):
    """The formula of the textbook."""
    rate, base = hits / shown, 1 + z * z / shown
    middle = (rate + z * z / (2 * shown)) / base
    half = z / base * math.sqrt(rate * (1 - rate) / shown + z * z / (4 * shown * shown))
    return [middle - half, middle + half]


def test_hits_and_their_interval_by_hand(bank):
    test = BlindTest(
        bank, bank.book, "Ada", [(True, "a"), (True, "b"), (False, "c"), (False, "d"), (False, "e")]
    )
    answers = [True, False, False, True, False]  # three right
    said = [test.answer(place, answer) for place, answer in enumerate(answers)]
    assert said[0] == {"done": False, "next": 1}
    result = said[-1]
    assert (result["done"], result["shown"], result["hits"], result["rate"]) == (True, 5, 3, 0.6)
    assert (result["real_shown"], result["real_found"]) == (2, 1)
    assert result["interval"] == pytest.approx(wilson(3, 5))
    (row,) = open_review(bank.book.pairs).rows
    assert (row["kind"], row["who"], row["hits"], row["answers"][3]) == (
        "blind", "Ada", 3, {"image": "d", "real": False, "said_real": True},
    )  # fmt: skip


def test_answers_come_in_order_and_once(bank):
    test = BlindTest(bank, bank.book, "Ada", [(True, "a"), (False, "c")])
    with pytest.raises(DataError, match="picture 2; expected picture 1"):
        test.answer(1, True)
    test.answer(0, True)
    with pytest.raises(DataError, match="picture 1; expected picture 2"):
        test.answer(0, False)
    test.answer(1, True)
    with pytest.raises(DataError):
        test.answer(2, True)


def test_a_test_mixes_both_kinds_none_twice_and_only_admitted_ones(bank):
    tests = BlindTests()
    for _ in range(20):
        shown = tests.get(tests.start(bank, "Ada", 8)).shown
        assert len(set(shown)) == len(shown) == 8
        assert {real for real, _ in shown} == {True, False}
        rejected = {image.file for image in bank.images if not image.admitted}
        assert not rejected & {name for _, name in shown}
    orders = [tests.get(tests.start(bank, "Ada", 8)).shown for _ in range(6)]
    assert len({tuple(order) for order in orders}) > 1


@pytest.mark.parametrize(
    ("who", "count", "message"), [("", 4, "Nobody"), ("Ada", 1, "2 to 200"), ("Ada", 900, "2 to")]
)
def test_a_test_needs_a_name_and_a_sensible_length(bank, who, count, message):
    with pytest.raises(DataError, match=message):
        BlindTests().start(bank, who, count)


def test_pictures_do_not_tell_what_they_are(own):
    with own.client() as client:
        made = client.post(f"/api/runs/{own.run}/blind", json={"who": "Ada", "count": 6}).json()
        kinds = set()
        for place in range(made["count"]):
            assert client.get(f"/api/blind/{made['test']}/{place + 1}.png").status_code == 404  # not its turn
            answer = client.get(f"/api/blind/{made['test']}/{place}.png")
            with Image.open(io.BytesIO(answer.content)) as image:
                kinds.add((image.size, image.mode, tuple(image.info), answer.headers["content-type"]))
                assert np.asarray(image).std() > 0
            last = client.post(f"/api/blind/{made['test']}/{place}", json={"real": True}).json()
        assert len(kinds) == 1
        assert last["hits"] == last["real_shown"]
        assert client.post("/api/blind/unknown/0", json={"real": True}).status_code == 404


@pytest.mark.parametrize("name", ["x.png", "1", "-1.png", "1.png.png", "../1.png", "¹.png"])
def test_a_picture_is_a_number(served, name):
    with served.client() as client:
        assert client.get(f"/api/blind/unknown/{name}").status_code in (404, 405)
