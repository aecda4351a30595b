"""Do synthetic images help here? Real images alone, several fixed shares and the learnt one, with one answer.

The answer takes all comparisons into account, by Holm's correction, and says no more than they show.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from mcpmix.bench.cells import Scored
from mcpmix.bench.driver import Outcome
from mcpmix.bench.grid import Grid, Method
from mcpmix.bench.plan import Plan, expand
from mcpmix.bench.sheets import Item, Sheet, to_markdown
from mcpmix.bench.state import Cell
from mcpmix.bench.tables import Images, interval_text, p_text, plain, scores_of, tested_images
from mcpmix.config import Config
from mcpmix.core.errors import ConfigError
from mcpmix.core.stage_folder import Artifact, write_json, write_text
from mcpmix.core.training import JsonLines
from mcpmix.data.splits import KNOWN
from mcpmix.metrics.statistics import Difference, aggregate, bootstrap_intervals, holm, paired_differences
from mcpmix.report import render_page
from mcpmix.report.arms import label_of
from mcpmix.report.charts import new_figure, svg_of
from mcpmix.report.tables import HEADLINE, caution

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
    shares = {dose_name(dose * config.rla.s_max): dose * config.rla.s_max for dose in _DOSES}
    methods = {
        name: Method(
            arm="mcpmix",
            label=f"fixed mixing up to {share:.3g}",
            settings={"rla": {"s_max": round(share, 4)}},
        )
        for name, share in shares.items()
    }
    grid = Grid(
        name=config.name,
        base=config.model_dump(mode="json"),
        methods=methods,
        arms=(REAL_ONLY, *methods, LEARNT),
        seeds=config.train.seeds,
    )
    plan = expand(grid, out)
    (group,) = plan.groups.values()
    # The run's own folder: what it has made is reused, its segmenters too.
    place = {"output": config.output, "name": config.name}
    groups = {
        name: type(group)(item.config.model_copy(update=place), item.share)
        for name, item in plan.groups.items()
    }
    cells = {
        cell: type(task)(task.arm, task.config.model_copy(update=place), task.group)
        for cell, task in plan.cells.items()
    }
    return Plan(grid, out, groups, cells, {})


def dose_name(share: float) -> str:
    """The name of a fixed largest share: `mcpmix-0.35`."""
    return f"mcpmix-{share:.4g}"


def judge(plan: Plan, cells: Mapping[Cell, Scored], data: Artifact) -> list[Verdict]:
    """A verdict on unseen groups, and one on known groups if there are images of these."""
    verdicts = []
    for part in ("test", KNOWN):
        images = tested_images(data, part)
        if images.ids:
            verdicts.append(_judge_part(plan, cells, images, part))
    return verdicts


def _judge_part(plan: Plan, cells: Mapping[Cell, Scored], images: Images, part: str) -> Verdict:
    scores: dict[str, dict[int, np.ndarray]] = {}
    for cell, scored in cells.items():
        scores.setdefault(cell.method, {})[cell.seed] = scores_of(scored, images, part, [HEADLINE])[:, 0]
    reference = scores[REAL_ONLY]
    methods = [method for method in plan.grid.arms if method != REAL_ONLY and method in scores]
    gains = {
        method: np.stack([scores[method][s] - reference[s] for s in scores[method] if s in reference])
        for method in methods
    }
    found = paired_differences(np.stack([gain.mean(0) for gain in gains.values()], axis=1), images.groups)
    corrected = holm([item.p for item in found])
    groups = len(set(images.groups))
    by_groups = groups >= _FEWEST_GROUPS
    doses = []
    for (method, gain), item, p_holm in zip(gains.items(), found, corrected, strict=True):
        low, high = (item.group_low, item.group_high) if by_groups else (item.low, item.high)
        ahead = sum(aggregate(row.tolist()).mean > 0 for row in gain)
        mean = aggregate(np.mean(list(scores[method].values()), axis=0).tolist()).mean
        label = plan.grid.label_of(method) or label_of(method)
        share = _share(cells, method)
        doses.append(Dose(method, label, share, mean, item, p_holm, low, high, ahead, len(gain)))
    alone = np.mean(list(reference.values()), axis=0)[:, None]
    low, high = bootstrap_intervals(alone, groups=images.groups if by_groups else None)[0]
    return Verdict(
        part,
        len(images.ids),
        groups,
        by_groups,
        aggregate(alone[:, 0].tolist()).mean,
        (float(low), float(high)),
        doses,
        sentence(doses, part, f"{groups} groups" if by_groups else f"{len(images.ids)} images"),
    )


def _share(cells: Mapping[Cell, Scored], method: str) -> float:
    """The mean share of the synthetic image over epochs and seeds, as trainings have logged it."""
    logs = [
        JsonLines(scored.segmenter / "log.jsonl").rows()
        for cell, scored in cells.items()
        if cell.method == method
    ]
    return float(np.mean([row["s"] for rows in logs for row in rows if "s" in row]))


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


def write_verdict(plan: Plan, found: Outcome) -> tuple[list[Verdict], Path]:
    """Write verdict.json, verdict.md, a dose-response plot for each part, and the page."""
    (made,) = found.groups.values()
    verdicts = judge(plan, found.cells, next(iter(made.inputs.values())).dataset)
    sheets, figures = {}, []
    for verdict in verdicts:
        name = f"dose-response-{verdict.part}"
        sheets[name] = [to_sheet(verdict)]
        figures.append({"name": name, **_draw(verdict, name, plan.out)})
    write_json(plan.out / "verdict.json", [plain(asdict(verdict)) for verdict in verdicts])
    lines = [f"# {plan.grid.name}: do synthetic images help?\n", *(f"{v.sentence}\n" for v in verdicts)]
    write_text(plan.out / "verdict.md", "\n".join([*lines, *(to_markdown(s[0]) for s in sheets.values())]))
    page = render_page(
        "bench.html.j2",
        grid=plan.grid,
        kicker="MCPMix verdict",
        sentences=[verdict.sentence for verdict in verdicts],
        sheets=sheets,
        figures=figures,
        missing=[],
        failures=found.failures,
        finished=len(found.cells),
        cells=len(plan.cells),
        caution=caution(len(plan.grid.seeds)),
        settings="",
        versions={},
    )
    write_text(plan.out / "verdict.html", page)
    return verdicts, plan.out / "verdict.html"


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


def _draw(verdict: Verdict, name: str, out: Path) -> dict[str, str]:
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
        figure.savefig(out / f"{name}.png", dpi=150)
        svg = svg_of(figure, name)
    title = "Dose and response, " + ("known groups" if verdict.part == KNOWN else "unseen groups")
    caption = "Difference in DSC from real images alone with the same seeds, with 95 % bootstrap intervals."
    return {"title": title, "caption": caption, "svg": svg}
