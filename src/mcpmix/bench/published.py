"""The figures of the paper's tables, and what must be known to read them beside ours."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from mcpmix.config import Config

Figures = Mapping[str, Sequence[float | None]]
"""Metric to mean and standard deviation, None where the paper gives none."""


@cache
def published() -> dict[str, Any]:
    """All tables, and the setting in which they were measured."""
    text = (resources.files("mcpmix.bench") / "published.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def published_table(kind: str, dataset: str) -> Mapping[str, Figures]:
    """The rows of a table on a data set: arm, or network/arm, to figures; empty if the paper has none."""
    rows: Mapping[str, Figures] = published()["tables"].get(kind, {}).get(dataset, {})
    return rows


def what_differs(config: Config, labels: str, dataset: str, seeds: Sequence[int]) -> str:
    """A note about the published figures: whose they are, and how our setting differs from theirs."""
    paper = published()
    ours = {
        "data": config.data.source,
        "labelled images": labels,
        "pixels a side": config.data.size,
        "network": config.segmenter.name,
        "epochs": config.train.epochs,
        "images a step": config.train.batch_size,
        "seeds": " to ".join(str(count) for count in sorted({min(seeds), max(seeds)})),
    }
    theirs = {
        "data": dataset,
        "labelled images": "all",
        "pixels a side": paper["size"],
        "network": paper["segmenter"],
        "epochs": paper["epochs"],
        "images a step": paper["batch_size"],
        "seeds": str(paper["seeds"]),
    }
    listed = "; ".join(
        f"{key}: {ours[key]}, theirs {theirs[key]}" for key in ours if ours[key] != theirs[key]
    )
    return (
        f"† As published for {paper['sets'].get(dataset, dataset)}, not measured by us. The paper names no "
        f"split, code or weights. What differs besides: {listed or 'nothing that the paper names'}."
    )
