import math
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from mcpmix.core.errors import DataError
from mcpmix.generator.review import open_review
from mcpmix.studio.blind import BlindTest, BlindTests, place_of_picture
from mcpmix.studio.pairs import BankView
from mcpmix.studio.reading import AbsentError
from mcpmix.studio.runs import Runs


@pytest.fixture
def bank(runs):
    view = BankView(Runs(runs).all()[0])
    view.refresh()
    return view


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
            with Image.open(BytesIO(answer.content)) as image:
                kinds.add((image.size, image.mode, tuple(image.info), answer.headers["content-type"]))
                assert np.asarray(image).std() > 0
            last = client.post(f"/api/blind/{made['test']}/{place}", json={"real": True}).json()
        assert len(kinds) == 1
        assert last["hits"] == last["real_shown"]
        assert client.post("/api/blind/unknown/0", json={"real": True}).status_code == 404


@pytest.mark.parametrize("name", ["x.png", "1", "-1.png", "1.png.png", "../1.png", "¹.png"])
def test_a_picture_is_a_number(name):
    assert place_of_picture("12.png") == 12
    with pytest.raises(AbsentError):
        place_of_picture(name)
