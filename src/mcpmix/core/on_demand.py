"""Values that are made when they are asked for, so that many large ones need not be in memory together."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

_MOST_KEPT = 2**30  # bytes


class Sized(Protocol):
    """An array or a tensor."""

    @property
    def nbytes(self) -> int: ...  # noqa: D102


K = TypeVar("K")
V = TypeVar("V", bound=Sized)


class OnDemand(Mapping[K, V], Generic[K, V]):
    """A mapping whose values are made when they are asked for.

    The first gigabyte of them is kept, which is all of them where images are few or small.

    Args:
        keys: looked up and counted, such as a range.
        make: gives the value of a key, always the same.
    """

    def __init__(self, keys: Collection[K], make: Callable[[K], V]) -> None:
        self._keys, self._make = keys, make
        self._kept: dict[K, V] = {}
        self._room = _MOST_KEPT

    def __getitem__(self, key: K) -> V:
        if key in self._kept:
            return self._kept[key]
        value = self._make(key)
        if value.nbytes <= self._room:
            self._kept[key] = value
            self._room -= value.nbytes
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
