"""Reporting checklists (CLAIM, TRIPOD+AI): the items that a run can answer, and those that only a person can.

Answers come from the configuration, manifests and tables of the run; nothing is guessed. Which answer belongs
to which item is written in checklists.yaml.
"""

from importlib import resources
from typing import Any

import numpy as np
import yaml

from mcpmix.data.splits import ALL_PARTS
from mcpmix.metrics import bootstrap_intervals
from mcpmix.networks.weight_files import licence_of
from mcpmix.report.report import GUESSED_NOTE, Results
from mcpmix.report.sentences import caution
from mcpmix.report.tables import HEADLINE, spread_text

_WORST = 3  # images named as failures of each arm
_FAILED = 10.0  # DSC in percent below which an image counts as failed


def checklist_names() -> list[str]:
    """Names that `fill_checklist` accepts."""
    return list(_read())


def fill_checklist(name: str, results: Results) -> str:
    """A checklist as Markdown: what the run answers, then what a person must write.

    Args:
        results: of a finished run, on its test part.
    """
    chosen, answers = _read()[name], answer(results)
    lines = [f"# {results.config.name}: {chosen['title']}\n"]
    lines.append(
        f"Filled from the files of the run; topics in our words, see {chosen['cite']} for the items.\n"
    )
    lines += ["## Answered by the run\n", "| item | topic | answer |", "|---|---|---|"]
    by_hand = []
    for entry in chosen["items"]:
        item, topic = entry["item"], entry["topic"]
        if "from" in entry:
            text = answers[entry["from"]].replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {item} | {topic} | {text} |")
        if "from" not in entry or "ask" in entry:
            by_hand.append(f"- [ ] {item}: {entry.get('ask', topic)}")
    return "\n".join([*lines, "\n## Only you can answer\n", *by_hand, ""])


def _read() -> dict[str, Any]:
    text = (resources.files("mcpmix.report") / "checklists.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def answer(results: Results) -> dict[str, str]:
    """What a run says about itself, by the names that checklists.yaml uses."""
    return {**_about_data(results), **_about_training(results), **_about_scores(results)}


def _about_data(results: Results) -> dict[str, str]:
    config, data, records = results.config, results.config.data, results.index.records
    sources = ", ".join(sorted({record.source for record in records}))
    origin = f"{len(records)} images with masks, from {sources}; SHA-256 of ids, split and pixels: "
    origin += f"{results.index.digest}."
    fold = f", fold {data.split.fold} of {data.split.folds}" if data.split.method == "kfold" else ""
    split = f"Method {data.split.method}{fold}, seed {config.seed}; groups stay whole."
    if data.split.file is not None:
        split = f"By the file {data.split.file.name}."
    if data.source == "phantom":
        origin = "Images drawn by a procedural phantom of endoscopy; no patient is among them."
        split = f"Patients of the phantom drawn apart for each part, seed {config.seed}."
    kept = "all" if data.labelled is None else f"{data.labelled}, drawn in whole groups"
    extra = "images without masks were used as well" if data.has_unlabelled else "no images without masks"
    sizes = [
        f"{part}: {len(found)} images of {len({record.group for record in found})} {results.word}"
        for part in ALL_PARTS
        if (found := results.index.part(part))
    ]
    guessed = f"{GUESSED_NOTE} " if results.guessed else ""
    leaks = f"Leaks were found: {results.leaks}." if results.leaks else "No leak was found."
    return {
        "data": origin,
        "preprocessing": f"RGB images were resized to {data.size} x {data.size} pixels, bilinear, masks by "
        "nearest neighbour. Test images were scored at their own size.",
        "subsets": f"training images that keep their masks: {kept}; {extra}.",
        "split": split,
        "leakage": f"Parts are disjoint by {results.word}. {guessed}Test images, and near-copies of them, "
        f"were searched in all that generator and segmenter had seen. {leaks}",
        "sizes": "; ".join(sizes) + ".",
        "settings": "All settings: `config.yaml` and the manifests of the run; a seed and digests make it "
        "repeatable.",
        "availability": "mcpmix is Apache-2.0; `mcpmix pack --run` writes weights, cards and tables without "
        "patient images.",
    }


def _about_training(results: Results) -> dict[str, str]:
    config, train, settings = results.config, results.config.train, results.config.segmenter
    arms = [f"{arm.label}: {arm.description}" if arm.description else arm.label for arm in results.arms]
    versions = next(iter(results.evaluations.values())).manifest["versions"]
    start = f"From {settings.weights} (licence: {licence_of(settings.weights)})." if settings.weights else ""
    steps = sorted({count for counts in results.steps.values() for count in counts})
    spans = f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else f"{steps[0]}"
    return {
        "model": f"Segmenter {settings.name} {settings.variant}, B,3,H,W to B,1,H,W logits. Compared ways of "
        f"training: {'; '.join(arms)}.",
        "output": "A probability for each pixel, not calibrated; a lesion from "
        f"{config.evaluation.threshold:g} on.",
        "software": ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        "initialisation": start or "At random, by seed.",
        "training": f"AdamW at {train.learning_rate:g}, weight decay {train.weight_decay:g}, "
        f"batches of {train.batch_size}, {train.epochs} + {train.tail_epochs} epochs, {spans} steps; "
        f"turned by up to {train.rotate:g} degrees, scaled by up to {train.scale:g}, "
        f"{'flipped' if train.flip else 'not flipped'}. {len(results.segmenters)} trainings; "
        f"seeds {', '.join(map(str, train.seeds))}, of the run {config.seed}.",
        "selection": "The checkpoint with the best running mean of DSC on the validation part; no test image "
        "had a say.",
        "ensembles": "None: each training is scored by itself, and figures are means over seeds.",
    }


def _about_scores(results: Results) -> dict[str, str]:
    """Figures are means over seeds; whole groups are drawn for the intervals of the mean DSC."""
    ids = [record.id for record in results.records]
    groups = [record.group for record in results.records]
    intervals, ranges, failures = [], [], []
    for arm in results.arms:
        found = [scores for (name, _), scores in results.scores.items() if name == arm.name]
        means = {name: float(np.mean([scores[name] for scores in found])) for name in found[0]}
        values = np.array([[means[name]] for name in ids])
        low, high = bootstrap_intervals(values, groups=groups)[0]
        if np.isfinite(low):
            intervals.append(f"{arm.label} {np.nanmean(values):.1f} ({low:.1f} to {high:.1f})")
        by_group = [np.mean(list(seeds.values())) for seeds in results.groups[arm.name].values()]
        ranges.append(f"{arm.label} {min(by_group):.1f} to {max(by_group):.1f}")
        worst = ", ".join(sorted(means, key=means.__getitem__)[:_WORST])
        failed = sum(value < _FAILED for value in means.values())
        failures.append(f"{arm.label}: {failed} of {len(means)} images below {_FAILED:g} %, worst {worst}")
    performance = []
    for part in results.parts:
        rows = [(row["label"], row["metrics"][HEADLINE]["spread"]) for row in part.table["rows"]]
        figures = "; ".join(f"{label} DSC {spread_text(spread)} %" for label, spread in rows)
        performance.append(f"{part.title}: {figures}.")
    uncertainty = f"No interval: there are too few test {results.word}."
    if intervals:
        uncertainty = f"DSC in % with 95 % bootstrap intervals over test {results.word}: "
        uncertainty += f"{'; '.join(intervals)}."
    warnings = [*results.alarms, *([GUESSED_NOTE] if results.guessed else [])]
    warnings += [f"{results.leak_text}."] if results.leaks else []
    settings = results.config.evaluation
    return {
        "metrics": ", ".join(column["label"] for column in results.table["columns"])
        + f"; per image, then the mean. Threshold {settings.threshold:g}, band {settings.band:g} pixels.",
        "performance": " ".join(performance),
        "uncertainty": f"{uncertainty} {caution(len(results.table['seeds']))}",
        "robustness": f"DSC in % of the worst and best test {results.word[:-1]}, mean over seeds: "
        f"{'; '.join(ranges)}.",
        "failures": f"DSC, mean over seeds. {'; '.join(failures)}.",
        "warnings": " ".join(warnings) or "The run itself gave no alarm.",
    }
