"""What the catalogue knows about a data set."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mcpmix.data.collection import Collection


@dataclass(frozen=True)
class Archive:
    """A file that anybody may download.

    Attributes:
        url: where it is.
        sha256: of its bytes; empty if its publisher states none.
        md5: the same.
    """

    url: str
    sha256: str = ""
    md5: str = ""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Entry:
    """A public data set.

    Attributes:
        name: how it is called in a configuration, lower case.
        title: how its authors call it.
        images: number of images with masks in the complete set.
        shows: what is seen, in a few words.
        groups: what a group is; empty if nothing is known and each image is its own.
        splits: names of the splits that come with it.
        licence: terms of use.
        citation: the paper to cite.
        home: where it is obtained, and on what conditions.
        layout: what the unpacked archive looks like.
        traps: what has gone wrong for others.
        load: from the folder of the unpacked archive, or the folder that holds it, to its samples.
        archives: what `mcpmix data get` downloads; empty if there is no open download.
        access: how else to get it, where there is none.
        stems: a regular expression that the stems of its images match, by which it is recognised; empty if
            they are not special.
        whole: whether it is recognised only if complete, because others name their files so too.
    """

    name: str
    title: str
    images: int
    shows: str
    groups: str
    splits: tuple[str, ...]
    licence: str
    citation: str
    home: str
    layout: str
    traps: tuple[str, ...]
    load: Callable[[Path], Collection]
    archives: tuple[Archive, ...] = ()
    access: str = ""
    stems: str = ""
    whole: bool = False
