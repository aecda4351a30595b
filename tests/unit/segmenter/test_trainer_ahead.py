import threading

import pytest

from mcpmix.segmenter.trainer import one_ahead


def test_same_items_in_the_same_order():
    assert list(one_ahead(iter(range(20)))) == list(range(20))
    assert list(one_ahead(iter([]))) == []


def test_items_are_made_by_one_other_thread_while_the_one_before_is_in_use():
    makers, made = set(), threading.Event()

    def items():
        yield "first"
        makers.add(threading.get_ident())
        made.set()
        yield "second"

    coming = one_ahead(items())
    assert next(coming) == "first"
    assert made.wait(5)  # nobody has asked for the second yet
    assert next(coming) == "second"
    assert threading.get_ident() not in makers


def test_no_more_than_one_is_made_ahead():
    started = []

    def items():
        for number in range(5):
            started.append(number)
            yield number

    coming = one_ahead(items())
    next(coming)
    coming.close()  # waits for what is in the making
    assert started == [0, 1]


def test_none_is_an_item():
    assert list(one_ahead(iter([None, 1, None]))) == [None, 1, None]


def test_an_error_comes_where_its_item_would():
    def items():
        yield 1
        raise ValueError("broken")

    coming = one_ahead(items())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="broken"):
        next(coming)


def test_stopping_early_leaves_no_thread():
    before = threading.active_count()
    coming = one_ahead(iter(range(5)))
    next(coming)
    coming.close()
    assert threading.active_count() == before
