"""Work that is done while the training thread is busy with what came before."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items in the same order, each made in a background thread while the one before is in use.

    Whoever makes the items must not read what the user of the items changes. An error in making an item is
    raised where the item would have come; when the user stops early, the item in the making is waited for.

    Args:
        items: Makes an item at each call of `next`; only ever called by the background thread.
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # anything but `end` is a T
