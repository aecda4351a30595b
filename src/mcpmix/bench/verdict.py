"""Do synthetic images help here? Real images alone, several fixed shares and the learnt one, with one answer.

The answer takes all comparisons into account, by Holm's correction, and says no more than they show.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from mcpmix.bench.cells import Outcome
from mcpmix.bench.figures import Drawn, keep
from mcpmix.bench.grid import Grid, Method, Plan, expand
from mcpmix.bench.page import to_markdown, write_page
from mcpmix.bench.tables import Item, Sheet, compare, interval_text, p_text, plain
from mcpmix.config import Config
from mcpmix.core.errors import ConfigError
from mcpmix.core.files import write_json, write_text
from mcpmix.core.training import JsonLines
from mcpmix.data.splits import KNOWN
from mcpmix.metrics.statistics import Difference, aggregate, bootstrap_intervals
from mcpmix.report.arms import label_of
from mcpmix.report.charts import new_figure
from mcpmix.report.sentences import caution
from mcpmix.report.tables import HEADLINE

REAL_ONLY, LEARNT = "full-sup", "mcpmix-rla"
_DOSES = (0.25, 0.5, 1.0)  # of rla.s_max: the largest share of fixed mixing
_SURE = 0.05  # largest corrected p of a benefit that is called one
_FEWEST_GROUPS = 5  # of which an interval over groups is made; over images below


@dataclass(frozen=True)
class Dose:
    """One way to use synthetic images, against real images alone."""

    method: str
    label: str
    share: float  # mean share of the synthetic image in a mixed one; of RLA: its mean over epochs and seeds
    mean: float  # DSC, percent
    difference: Difference  # points of DSC
    p_holm: float
    low: float  # the interval that the verdict goes by
    high: float
    ahead: int  # seeds with which it is ahead
    seeds: int

    @property
    def helps(self) -> bool:
        """Ahead with every seed, with an interval above 0, and not by chance among so many comparisons."""
        return self.ahead == self.seeds and self.low > 0 and self.p_holm < _SURE

    @property
    def harms(self) -> bool:
        """The same the other way round."""
        return self.ahead == 0 and self.high < 0 and self.p_holm < _SURE


@dataclass(frozen=True)
class Verdict:
    """What one test part says."""

    part: str
    images: int
    groups: int
    by_groups: bool  # whether intervals are over groups
    reference: float  # DSC of real images alone
    reference_interval: tuple[float, float]
    doses: list[Dose]
    sentence: str


def make_plan(config: Config, out: Path) -> Plan:
    """The comparison as a grid: the run's own inputs, its seeds, and a few fixed shares beside RLA."""
    if not config.train.seeds:
        raise ConfigError("train.seeds: empty; name at least one")
    methods = {}
    for dose in _DOSES:
        share = dose * config.rla.s_max
        settings = {"rla": {"s_max": round(share, 4)}}
        label = f"fixed mixing up to {share:.3g}"
        methods[f"mcpmix-{share:.4g}"] = Method(arm="mcpmix", label=label, settings=settings)
    grid = Grid(
        name=config.name,
        base=config.model_dump(mode="json"),
        methods=methods,
        arms=(REAL_ONLY, *methods, LEARNT),
        seeds=config.train.seeds,
    )
    plan = expand(grid, out)
    # The run's own folder: what it has made is reused, its segmenters too.
    place = {"output": config.output, "name": config.name}
    return replace(
        plan,
        groups={
            name: replace(group, config=group.config.model_copy(update=place))
            for name, group in plan.groups.items()
        },
        cells={
            cell: replace(task, config=task.config.model_copy(update=place))
            for cell, task in plan.cells.items()
        },
    )


def judge(found: Outcome, part: str) -> Verdict | None:
    """What the images of a test part say; None if there are none."""
    images = found.tested(next(iter(found.cells)), part)
    if not images:
        return None
    scores: dict[str, dict[int, np.ndarray]] = {}
    shares: dict[str, list[float]] = {}
    for cell, scored in found.cells.items():
        values = found.scores(cell, images, [HEADLINE], part)
        scores.setdefault(cell.method, {})[cell.seed] = values
        log = JsonLines(scored.segmenter / "log.jsonl").rows()
        shares.setdefault(cell.method, []).extend(row["s"] for row in log if "s" in row)
    reference = scores[REAL_ONLY]
    gains = {}
    for method in found.plan.grid.arms:
        if method != REAL_ONLY and method in scores:
            shared = [seed for seed in scores[method] if seed in reference]
            gains[method] = np.stack([scores[method][seed] - reference[seed] for seed in shared])
    names = [image.group for image in images]
    groups = len(set(names))
    by_groups = groups >= _FEWEST_GROUPS
    doses = []
    compared = compare([gain.mean(0) for gain in gains.values()], names)
    for (method, gain), (rival,) in zip(gains.items(), compared, strict=True):
        item = rival.difference
        low, high = (item.group_low, item.group_high) if by_groups else (item.low, item.high)
        ahead = sum(aggregate(row[:, 0].tolist()).mean > 0 for row in gain)
        mean = aggregate(np.mean(list(scores[method].values()), axis=0)[:, 0].tolist()).mean
        label, share = found.plan.grid.label_of(method), float(np.mean(shares[method]))
        doses.append(Dose(method, label, share, mean, item, rival.p_holm, low, high, ahead, len(gain)))
    alone = np.mean(list(reference.values()), axis=0)
    low, high = bootstrap_intervals(alone, groups=names if by_groups else None)[0]
    return Verdict(
        part,
        len(images),
        groups,
        by_groups,
        aggregate(alone[:, 0].tolist()).mean,
        (float(low), float(high)),
        doses,
        sentence(doses, part, f"{groups} groups" if by_groups else f"{len(images)} images"),
    )


def sentence(doses: Sequence[Dose], part: str, over: str) -> str:
    """The answer in words. Only what survives the correction over all comparisons is called a benefit."""
    where = "on new images of known groups" if part == KNOWN else "on unseen groups"
    best = max(doses, key=lambda dose: dose.difference.mean)

    def facts(dose: Dose) -> str:
        size = f"{abs(dose.difference.mean):.1f} points of DSC"
        side = "ahead of" if dose.difference.mean > 0 else "behind"
        return (
            f"{dose.label}, {size} {side} real images alone (95 % interval over {over} "
            f"{interval_text(dose.low, dose.high)}, p = {p_text(dose.p_holm)} after correction for "
            f"{len(doses)} comparisons, ahead with {dose.ahead} of {dose.seeds} seeds)"
        )

    helping = [dose for dose in doses if dose.helps]
    if helping:
        most = max(helping, key=lambda dose: dose.difference.mean)
        return f"Synthetic images help {where}: the best is {facts(most)}."
    if any(math.isnan(dose.difference.mean) for dose in doses):
        return f"No answer {where}: the DSC is undefined on too many images."
    if all(dose.harms for dose in doses):
        return f"Synthetic images harm {where}: even the best is {facts(best)}."
    harming = [dose.label for dose in doses if dose.harms]
    more = f" {', '.join(harming)} {'is' if len(harming) == 1 else 'are'} clearly behind." if harming else ""
    return f"No benefit shown {where}: the best is {facts(best)}.{more}"


# --- to read ------------------------------------------------------------------------------------------------


def write_verdict(found: Outcome) -> tuple[list[Verdict], Path]:
    """Write verdict.json, verdict.md, a dose-response plot for each part, and the page."""
    plan = found.plan
    verdicts = [item for part in ("test", KNOWN) if (item := judge(found, part)) is not None]
    names = [f"dose-response-{verdict.part}" for verdict in verdicts]
    sheets = [to_sheet(verdict) for verdict in verdicts]
    write_json(plan.out / "verdict.json", [plain(asdict(verdict)) for verdict in verdicts])
    lines = [f"# {plan.grid.name}: do synthetic images help?\n", *(f"{v.sentence}\n" for v in verdicts)]
    write_text(plan.out / "verdict.md", "\n".join([*lines, *map(to_markdown, sheets)]))
    page = write_page(
        found,
        "verdict.html",
        sheets={name: [sheet] for name, sheet in zip(names, sheets, strict=True)},
        figures=[draw_doses(verdict, name, plan.out) for verdict, name in zip(verdicts, names, strict=True)],
        kicker="MCPMix verdict",
        sentences=[verdict.sentence for verdict in verdicts],
        caution=caution(len(plan.grid.seeds)),
    )
    return verdicts, page


def to_sheet(verdict: Verdict) -> Sheet:
    """Every dose against real images alone."""
    heading = ["method", "mean share", "DSC", "minus real only", "95 % interval", "p, Holm", "seeds ahead"]
    first = [Item(label_of(REAL_ONLY)), Item("0"), Item(f"{verdict.reference:.2f}"), *[Item("")] * 4]
    rows = [first]
    for dose in verdict.doses:
        gain = f"{dose.difference.mean:+.2f}".replace("-", "−")
        texts = [dose.label, f"{dose.share:.2f}", f"{dose.mean:.2f}", gain]
        texts += [interval_text(dose.low, dose.high), p_text(dose.p_holm), f"{dose.ahead} of {dose.seeds}"]
        rows.append([Item(text) for text in texts])
    where = "New images of known groups" if verdict.part == KNOWN else "Unseen groups"
    unit = "groups" if verdict.by_groups else "images, of which several may show one patient"
    note = (
        f"{verdict.images} images of {verdict.groups} groups; same seeds and steps for all. Intervals by "
        f"bootstrap over {unit}. A benefit is called one if the interval lies above 0, p after Holm's "
        f"correction is below {_SURE:g}, and every seed is ahead."
    )
    return Sheet(where, heading, rows, [note])


def draw_doses(verdict: Verdict, name: str, folder: Path) -> Drawn:
    """Gain over share: fixed shares as a line, the learnt one as a point."""
    fixed = sorted((d for d in verdict.doses if d.method != LEARNT), key=lambda d: d.share)
    learnt = [d for d in verdict.doses if d.method == LEARNT]
    with new_figure(5.6, 3.4) as figure:
        axes = figure.subplots()
        axes.axhline(0, color="#5f7480", linewidth=1)
        for doses, colour, marker, label in (
            (fixed, "#d9860a", "s-", "fixed shares"),
            (learnt, "#0a9e74", "D", label_of(LEARNT)),
        ):
            x, y = [d.share for d in doses], [d.difference.mean for d in doses]
            axes.vlines(x, [d.low for d in doses], [d.high for d in doses], color=colour, alpha=0.5)
            axes.plot(x, y, marker, color=colour, label=label)
        axes.set(xlabel="mean share of the synthetic image", xlim=(0, None))
        axes.set_ylabel("DSC minus real only (points)")
        axes.legend(fontsize=7, frameon=False)
        return keep(
            figure,
            folder,
            name,
            f"Dose and response, {'known' if verdict.part == KNOWN else 'unseen'} groups",
            "Difference in DSC from real images alone with the same seeds, with 95 % bootstrap intervals.",
        )
