"""What a data set on disk gives: its samples, and the splits that come with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcpmix.data.sample import Sample


@dataclass(frozen=True)
class Collection:
    """Samples and the splits that were published or stored with them.

    Attributes:
        samples: in the order of their ids; files are named, not decoded.
        splits: by the name of the split (`official`, `pranet`), the part of each id: train, validation or
            test. Ids without a part are left out of that split.
        leaks: by the name of a split that puts a group into two parts, why it is offered nevertheless and
            what that means. Other splits may not cut a group.
        grouped: what a group is (`patient`, `video sequence`); empty if each image is its own.
    """

    samples: tuple[Sample, ...]
    splits: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    leaks: Mapping[str, str] = field(default_factory=dict)
    grouped: str = ""
