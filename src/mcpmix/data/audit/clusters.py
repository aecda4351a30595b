"""Groups for images of which nobody wrote down what belongs together."""

from collections.abc import Sequence

from mcpmix.data.audit.hashing import matches
from mcpmix.data.audit.inspection import Facts


def clusters(facts: Sequence[Facts]) -> dict[str, str]:
    """Put images that show nearly the same into one group, besides those that are in one group already.

    Nearness is passed on: if a is near b and b near c, all three are one group. That keeps neighbouring
    frames of a video together as far as they look alike; it does not know patients.

    Args:
        facts: of a data set; files that cannot be read stay alone.

    Returns:
        By id, the name of the group: the first id in it.
    """
    readable = [item for item in facts if item.fingerprint]
    prints = [item.fingerprint for item in readable if item.fingerprint]
    parent = {item.sample.id: item.sample.id for item in facts}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def join(one: str, other: str) -> None:
        first, second = sorted((root(one), root(other)))
        parent[second] = first

    known: dict[str, str] = {}
    for item in facts:
        join(known.setdefault(item.sample.group, item.sample.id), item.sample.id)
    for match in matches(prints, prints):
        join(readable[match.first].sample.id, readable[match.second].sample.id)
    return {name: root(name) for name in parent}
