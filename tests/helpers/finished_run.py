"""A finished run whose folders are made by hand, with the documented formats; and its page, parsed."""

import csv
import math
from dataclasses import asdict
from html.parser import HTMLParser

import numpy as np
from PIL import Image

from mcpmix.config_file import resolve_config
from mcpmix.core.files import write_json
from mcpmix.core.stage_folder import StageKey, workspace
from mcpmix.core.training import JsonLines
from mcpmix.data.dataset import build_index
from mcpmix.data.index import DatasetIndex
from mcpmix.data.phantom_set import write_phantom_set
from mcpmix.data.sample import read_mask
from mcpmix.metrics import Counts, region_scores, score_with_counts, summarise
from mcpmix.mixing.mcpmix import cosine_decay
from mcpmix.phantom import render
from mcpmix.report import report
from mcpmix.segmenter.evaluate import TESTED

ARMS = ("full-sup", "mcpmix", "mcpmix-rla")
SKILL = {"full-sup": 3, "mcpmix": 2, "mcpmix-rla": 1}  # pixels by which predictions are off


class FinishedRun:
    """A run folder with phantom frames of other patients in place of synthetic counterparts."""

    def __init__(self, folder, overrides=(), *, skill=SKILL, warnings=()):
        tree = {"preset": "tiny", "name": "trial", "output": str(folder)}
        small = ["data.size=32", "train.epochs=12", "train.validate_every=4", "synthesis.replicas=3"]
        phantom = {"train": 2, "validation": 1, "test": 3}
        small += [f"data.phantom.{part}_patients={count}" for part, count in phantom.items()]
        small += ["data.phantom.frames_per_patient=2", "data.phantom.test_frames_per_patient=2"]
        small += ["data.phantom.known_frames_per_patient=2"]
        self.config = resolve_config(tree, [*small, *overrides])
        self.skill, self.warnings = skill, list(warnings)
        self.dataset = self._make("dataset", self._write_dataset)
        self.index = DatasetIndex.read(self.dataset)
        self.pairs = self._make("pairs", self._write_pairs)
        runs = [(arm, seed) for seed in self.config.train.seeds for arm in self.config.train.arms]
        self.segmenters = {run: self._make_run("segmenter", run, self._write_log) for run in runs}
        self.evaluations = {run: self._make_run("evaluation", run, self._write_evaluation) for run in runs}

    def report(self, **changes):
        parts = ("dataset", "pairs", "segmenters", "evaluations")
        inputs = {name: changes.get(name, getattr(self, name)) for name in parts}
        folder, review = self.config.folder / "report", changes.get("review")
        return report.run(self.config, *inputs.values(), folder, review=review)

    def page(self, **changes):
        return (self.report(**changes) / "report.html").read_text(encoding="utf-8")

    def _make(self, name, write, *arguments):
        with workspace(self.config.folder / name, StageKey(name, {})) as space:
            return space.finish(**write(space.folder, *arguments))

    def _make_run(self, stage, run, write):
        return self._make(f"{stage}/{run[0]}/seed-{run[1]}", write, *run)

    def _write_dataset(self, folder):
        data = self.config.data
        samples, split = write_phantom_set(folder, **data.phantom.model_dump(), seed=0, size=data.size)
        build_index(samples, split).write(folder)
        return {part: len(ids) for part, ids in split.parts().items()}

    def _write_pairs(self, folder):
        ledger = JsonLines(folder / "ledger.jsonl")
        for place, record in enumerate(self.index.part("train")):
            for replica in range(self.config.synthesis.replicas):
                file = f"images/{record.id}/{replica}.png"
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                pixels = render(99, 100 + replica, place, self.config.data.size).image
                Image.fromarray(pixels).save(folder / file)
                ledger.append(parent=record.id, replica=replica, file=file, admitted=True)
        count = len(self.index.part("train"))
        return {"images": count * self.config.synthesis.replicas, "parents": count, "warnings": []}

    def _write_log(self, folder, arm, seed):
        log, epochs = JsonLines(folder / "log.jsonl"), self.config.train.epochs
        for epoch in range(1, epochs + 1):
            decay = cosine_decay(epoch, epochs)
            row = {"epoch": epoch, "loss": decay + 0.2, "loss_real": 0.6 * decay + 0.02 * (seed + 1)}
            if arm != "full-sup":
                row["loss_mixed"] = 0.7 * decay + 0.05
            if arm == "mcpmix-rla":
                row |= {"s": 0.35 * decay, "rho": 0.25 * decay, "tau": 0.1 * decay, "s_prior": 0.7 * decay}
                row |= {"rho_prior": 0.5 * decay, "discrepancy": 0.08 * decay if epoch > 1 else math.nan}
            if epoch % self.config.train.validate_every == 0:
                row["validation"] = {"dsc": 60 + 20 * (1 - decay) + seed}
            log.append(**row)
        return {"steps": 12 * epochs, "warnings": self.warnings if arm == "mcpmix-rla" else []}

    def _write_evaluation(self, folder, arm, seed):
        (folder / "predictions").mkdir(exist_ok=True)
        for part, ending in TESTED.items():
            if records := self.index.part(part):
                self._write_scores(folder, ending, records, arm, seed)
        return {}

    def _write_scores(self, folder, ending, records, arm, seed):
        rows, total = [], Counts(0, 0, 0, 0)
        for place, record in enumerate(records):
            truth = read_mask(record.mask).astype(bool)
            prediction = np.roll(truth, self.skill[arm] + (seed + place) % 2, axis=1)
            Image.fromarray(prediction.astype(np.uint8) * 255).save(folder / f"predictions/{record.id}.png")
            scores, counts = score_with_counts(truth, prediction, self.config.evaluation.tolerances)
            rows.append(scores)
            total += counts
        with (folder / f"scores{ending}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["id", *rows[0]])
            writer.writeheader()
            writer.writerows({"id": r.id, **row} for r, row in zip(records, rows, strict=True))
        summary = {name: asdict(value) for name, value in summarise(rows).items()}
        for name, value in region_scores(total).items():
            summary[name]["pooled"] = value
        write_json(folder / f"summary{ending}.json", summary)


class Outline(HTMLParser):
    """Elements, headings and text of a page."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.headings, self.texts, self.ids, self._open = [], [], [], [], []
        self.feed(page)
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if self._open[-1:] == ["h2"]:
            self.headings.append(data.strip())
        if "style" not in self._open:
            self.texts.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]
