"""The page: one file with everything in it, that needs neither network nor scripts."""

from collections.abc import Mapping
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mcpmix.report.arms import Arm
from mcpmix.report.pictures import Tile
from mcpmix.report.tables import Table

TRUTH_COLOUR = "#ffffff"
"""Colour of the true contour."""


@dataclass(frozen=True)
class Fact:
    """A number that a reader looks for first, what it counts, and a detail."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart as an `<svg>` element, its caption, and what it shows for those who do not see it."""

    svg: str
    caption: str
    alt: str


@dataclass(frozen=True)
class TableView:
    """A table with its title and the notes below it."""

    title: str
    table: Table
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Strip:
    """A training sample: the way from real to synthetic under one mask, and the counterparts."""

    title: str
    mixed: tuple[Tile, ...]
    counterparts: tuple[Tile, ...]


@dataclass(frozen=True)
class CaseView:
    """A test image: truth, then the prediction of each arm."""

    title: str
    tiles: tuple[Tile, ...]


@dataclass(frozen=True)
class Section:
    """Charts under a title with a text."""

    title: str
    text: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from.

    Attributes:
        seeds: what each seed is for.
        versions: package to version.
        weights: (what for, source, licence).
        digests: artefact to SHA-256.
        config: the configuration as YAML.
    """

    seeds: Mapping[str, str]
    versions: Mapping[str, str]
    weights: tuple[tuple[str, str, str], ...]
    digests: Mapping[str, str]
    config: str


@dataclass(frozen=True)
class Page:
    """All that the page shows, in its order.

    Attributes:
        name: of the run.
        lead: what was compared, on what.
        verdicts: sentences on the differences between arms; the method first.
        caution: what to keep in mind about them; may be empty.
        facts: sizes of the parts and the like.
        arms: in the order of the tables.
        tables: region metrics, then boundary metrics.
        groups: the test groups one by one.
        strips: training samples with counterparts.
        strips_text: what they are, or why there are none.
        gates: one section for each arm with learnable gates.
        training: losses and validation.
        cases: test images.
        cases_text: how they were chosen.
        warnings: (training, text).
        provenance: where the numbers come from.
        bank: pictures of the bank of pairs.
        bank_text: what was tried and admitted.
    """

    name: str
    lead: str
    verdicts: tuple[str, ...]
    caution: str
    facts: tuple[Fact, ...]
    arms: tuple[Arm, ...]
    tables: tuple[TableView, ...]
    groups: Section
    strips: tuple[Strip, ...]
    strips_text: str
    gates: tuple[Section, ...]
    training: Section
    cases: tuple[CaseView, ...]
    cases_text: str
    warnings: tuple[tuple[str, str], ...]
    provenance: Provenance
    bank: tuple[Tile, ...] = ()
    bank_text: str = ""


def render(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=PackageLoader("mcpmix.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup  # charts are made by `figures`, never from outside
    template = environment.get_template("report.html.j2")
    return template.render(page=page, truth=TRUTH_COLOUR)
