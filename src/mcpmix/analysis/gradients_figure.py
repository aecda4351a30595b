"""The picture of the analysis of gradients."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from mcpmix.reporting.arms import arms_of

if TYPE_CHECKING:
    from mcpmix.analysis.gradients import Boundary

_PANELS = (
    ("flips", "sign flips between epochs (%)"),
    ("noise_to_signal", "gradient: noise / signal"),
    ("band", "width of the transition (px)"),
)


def draw(found: Mapping[str, "Boundary"], path: Path) -> None:
    """Three bar charts side by side, one bar for each arm.

    Args:
        found: arm to what was measured.
        path: of the PNG.
    """
    arms = arms_of(list(found))
    figure = Figure(figsize=(10.5, 0.9 + 0.32 * len(arms)), layout="constrained")
    axes = figure.subplots(1, len(_PANELS), sharey=True, squeeze=False)[0]
    for chart, (quantity, title) in zip(axes, _PANELS, strict=True):
        values = [getattr(found[arm.name], quantity) for arm in arms]
        chart.barh([arm.label for arm in arms], values, color=[arm.colour for arm in arms], height=0.7)
        chart.set_title(title, fontsize=10)
        chart.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=110)
