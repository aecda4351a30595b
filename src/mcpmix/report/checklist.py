"""Reporting checklists (CLAIM, TRIPOD+AI): the items that a run can answer, and those that only a person can.

Answers come from the configuration, manifests and tables of the run; nothing is guessed. Which function below
answers which item is written in checklists.yaml.
"""

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import numpy as np
import yaml

from mcpmix.data.splits import ALL_PARTS
from mcpmix.metrics import bootstrap_intervals
from mcpmix.networks.weight_files import licence_of
from mcpmix.report.report import GUESSED_NOTE, Results
from mcpmix.report.tables import HEADLINE, caution, spread_text

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
    chosen = _read()[name]
    lines = [f"# {results.config.name}: {chosen['title']}\n"]
    lines.append(
        f"Filled from the files of the run; topics in our words, see {chosen['cite']} for the items.\n"
    )
    lines += ["## Answered by the run\n", "| item | topic | answer |", "|---|---|---|"]
    by_hand = []
    for entry in chosen["items"]:
        item, topic = entry["item"], entry["topic"]
        if "from" in entry:
            answer = " ".join(ANSWERS[entry["from"]](results)).replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {item} | {topic} | {answer} |")
        if "from" not in entry or "ask" in entry:
            by_hand.append(f"- [ ] {item}: {entry.get('ask', topic)}")
    return "\n".join([*lines, "\n## Only you can answer\n", *by_hand, ""])


def _read() -> dict[str, Any]:
    text = (resources.files("mcpmix.report") / "checklists.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


# --- answers: sentences about a run -------------------------------------------------------------------------


def _data(results: Results) -> list[str]:
    if results.config.data.source == "phantom":
        return ["Images drawn by a procedural phantom of endoscopy; no patient is among them."]
    sources = sorted({record.source for record in results.index.records})
    count, digest = len(results.index.records), results.index.digest
    return [
        f"{count} images with masks, from {', '.join(sources)}; SHA-256 of ids, split and pixels: {digest}."
    ]


def _preprocessing(results: Results) -> list[str]:
    size = results.config.data.size
    resized = f"RGB images were resized to {size} x {size} pixels, bilinear, masks by nearest neighbour."
    return [resized, "Test images were scored at their own size."]


def _subsets(results: Results) -> list[str]:
    data = results.config.data
    kept = "all" if data.labelled is None else f"{data.labelled}, drawn in whole groups"
    share = f"training images that keep their masks: {kept}"
    extra = "images without masks were used as well" if data.has_unlabelled else "no images without masks"
    return [f"{share}; {extra}."]


def _split(results: Results) -> list[str]:
    split, data = results.config.data.split, results.config.data
    if data.source == "phantom":
        return [f"Patients of the phantom drawn apart for each part, seed {results.config.seed}."]
    if split.file is not None:
        return [f"By the file {split.file.name}."]
    fold = f", fold {split.fold} of {split.folds}" if split.method == "kfold" else ""
    return [f"Method {split.method}{fold}, seed {results.config.seed}; groups stay whole."]


def _leakage(results: Results) -> list[str]:
    found = f"Leaks were found: {results.leaks}." if results.leaks else "No leak was found."
    told = [GUESSED_NOTE] if results.guessed else []
    seen = "Test images, and near-copies of them, were searched in all that generator and segmenter had seen."
    return [f"Parts are disjoint by {results.word}.", *told, seen, found]


def _sizes(results: Results) -> list[str]:
    parts = {part: results.index.part(part) for part in ALL_PARTS}
    texts = [
        f"{part}: {len(records)} images of {len({record.group for record in records})} {results.word}"
        for part, records in parts.items()
        if records
    ]
    return ["; ".join(texts) + "."]


def _model(results: Results) -> list[str]:
    settings, arms = results.config.segmenter, results.arms
    described = "; ".join(f"{arm.label}: {arm.description}" if arm.description else arm.label for arm in arms)
    network = f"{settings.name} {settings.variant}, B,3,H,W to B,1,H,W logits"
    return [f"Segmenter {network}. Compared ways of training: {described}."]


def _software(results: Results) -> list[str]:
    versions = next(iter(results.evaluations.values())).manifest["versions"]
    return [", ".join(f"{name} {version}" for name, version in versions.items()) + "."]


def _initialisation(results: Results) -> list[str]:
    source = results.config.segmenter.weights
    return [f"From {source} (licence: {licence_of(source)})." if source else "At random, by seed."]


def _training(results: Results) -> list[str]:
    train = results.config.train
    steps = sorted({count for counts in results.steps.values() for count in counts})
    spans = f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else f"{steps[0]}"
    return [
        f"AdamW at {train.learning_rate:g}, weight decay {train.weight_decay:g}, "
        f"batches of {train.batch_size}, {train.epochs} + {train.tail_epochs} epochs, {spans} steps; "
        f"turned by up to {train.rotate:g} degrees, scaled by up to {train.scale:g}, "
        f"{'flipped' if train.flip else 'not flipped'}. {len(results.segmenters)} trainings; "
        f"seeds {', '.join(map(str, train.seeds))}, of the run {results.config.seed}."
    ]


def _selection(_: Results) -> list[str]:
    return [
        "The checkpoint with the best running mean of DSC on the validation part; no test image had a say."
    ]


def _ensembles(_: Results) -> list[str]:
    return ["None: each training is scored by itself, and figures are means over seeds."]


def _metrics(results: Results) -> list[str]:
    names = ", ".join(column["label"] for column in results.table["columns"])
    settings = results.config.evaluation
    return [
        f"{names}; per image, then the mean. Threshold {settings.threshold:g}, band {settings.band:g} pixels."
    ]


def _performance(results: Results) -> list[str]:
    return [
        f"{part.title}: " + "; ".join(_dsc(row) for row in part.table["rows"]) + "." for part in results.parts
    ]


def _dsc(row: Any) -> str:  # noqa: ANN401 (a row of a table)
    return f"{row['label']} DSC {spread_text(row['metrics'][HEADLINE]['spread'])} %"


def _uncertainty(results: Results) -> list[str]:
    """Intervals of the mean DSC over seeds, with whole groups drawn."""
    ids = [record.id for record in results.records]
    groups = [record.group for record in results.records]
    texts = []
    for arm in results.arms:
        found = [scores for (name, _), scores in results.scores.items() if name == arm.name]
        values = np.array([[np.mean([scores[name] for scores in found])] for name in ids])
        low, high = bootstrap_intervals(values, groups=groups)[0]
        if np.isfinite(low):
            texts.append(f"{arm.label} {np.nanmean(values):.1f} ({low:.1f} to {high:.1f})")
    made = f"DSC in % with 95 % bootstrap intervals over test {results.word}: {'; '.join(texts)}."
    few = [f"No interval: there are too few test {results.word}."]
    return [made if texts else few[0], caution(len(results.table["seeds"]))]


def _robustness(results: Results) -> list[str]:
    texts = []
    for arm in results.arms:
        means = [np.mean(list(seeds.values())) for seeds in results.groups[arm.name].values()]
        texts.append(f"{arm.label} {min(means):.1f} to {max(means):.1f}")
    return [f"DSC in % of the worst and best test {results.word[:-1]}, mean over seeds: {'; '.join(texts)}."]


def _failures(results: Results) -> list[str]:
    texts = []
    for arm in results.arms:
        found = [scores for (name, _), scores in results.scores.items() if name == arm.name]
        means = {name: float(np.mean([scores[name] for scores in found])) for name in found[0]}
        worst = sorted(means, key=means.__getitem__)[:_WORST]
        failed = sum(value < _FAILED for value in means.values())
        texts.append(
            f"{arm.label}: {failed} of {len(means)} images below {_FAILED:g} %, worst {', '.join(worst)}"
        )
    return [f"DSC, mean over seeds. {'; '.join(texts)}."]


def _warnings(results: Results) -> list[str]:
    found = [*results.alarms, *([GUESSED_NOTE] if results.guessed else [])]
    found += [f"{results.leak_text}."] if results.leaks else []
    return found or ["The run itself gave no alarm."]


def _output(results: Results) -> list[str]:
    limit = results.config.evaluation.threshold
    return [f"A probability for each pixel, not calibrated; a lesion from {limit:g} on."]


def _settings(_: Results) -> list[str]:
    return [
        "All settings: `config.yaml` and the manifests of the run; a seed and digests make it repeatable."
    ]


def _availability(_: Results) -> list[str]:
    return [
        "mcpmix is Apache-2.0; `mcpmix pack --run` writes weights, cards and tables without patient images."
    ]


ANSWERS: dict[str, Callable[[Results], Sequence[str]]] = {
    "availability": _availability,
    "data": _data,
    "ensembles": _ensembles,
    "failures": _failures,
    "initialisation": _initialisation,
    "leakage": _leakage,
    "metrics": _metrics,
    "model": _model,
    "output": _output,
    "performance": _performance,
    "preprocessing": _preprocessing,
    "robustness": _robustness,
    "selection": _selection,
    "settings": _settings,
    "sizes": _sizes,
    "software": _software,
    "split": _split,
    "subsets": _subsets,
    "training": _training,
    "uncertainty": _uncertainty,
    "warnings": _warnings,
}
"""What a run can answer, by its name in checklists.yaml."""
