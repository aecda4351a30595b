"""Stage 2b: the bank of pairs. K counterparts per training mask, judged, with a ledger row for every try."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, locked, reuse, workspace
from mcpmix.data.cache import Arrays, cache_of, load_arrays
from mcpmix.data.index import DatasetIndex
from mcpmix.data.leakage import require_parents, seen_by_generator
from mcpmix.data.sample import read_image
from mcpmix.generator.admission import Admission, ExposureLimits, Thresholds, tally
from mcpmix.generator.bank import Bank, BankSize, damaged
from mcpmix.generator.conditions import read_depths
from mcpmix.generator.copies import CopyCheck
from mcpmix.generator.counterparts import build_maker
from mcpmix.generator.judge import load_judge
from mcpmix.generator.ledger import LEDGER, Ledger, Row, admitted_replicas, read_verified
from mcpmix.generator.sheet import draw_pictures
from mcpmix.networks.features import load_features
from mcpmix.networks.weight_files import resolve

# What the bank does not depend on: settings of pairs made in training.
_IN_TRAINING = {"source", "refresh", "budget", "workers", "ahead", "admission"}


def key(config: Config, generator: Artifact, judge: Artifact | None = None) -> StageKey:
    """What the pairs depend on; data set and depth are part of the generator's own identity."""
    settings = config.synthesis.model_dump(mode="json", exclude=_IN_TRAINING)
    settings["ledger"] = "sealed"  # banks of earlier versions have none that can be verified
    inputs = {"generator": generator.digest}
    admission = config.synthesis.admission
    if admission.enabled and judge is not None:
        settings["admission"] = admission.model_dump(mode="json", exclude={"judge"})
        settings["features"] = config.rla.features
        settings["copies"] = "calibrated"  # earlier versions took real images of other patients for copies
        inputs["judge"] = judge.digest
    return StageKey("synthesize", settings, inputs, config.seed)


def run(
    config: Config,
    dataset: Artifact,
    depth: Artifact,
    generator: Artifact,
    judge: Artifact | None,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Make the counterparts that are not there yet.

    Args:
        config: sections `generator`, `finetune.condition`, `synthesis` and `rla.features`.
        dataset: the data set's artefact; its training part, and its validation part for the copy check.
        depth: the depth maps of the training part.
        generator: the fine-tuned ControlNet.
        judge: says which counterparts are admitted; None: all are.
        out: folder of the result.
        runtime: device to run on.
        progress: where to report.

    Raises:
        StorageError: the ledger of an unfinished bank was changed.
    """
    if (finished := reuse(out, key(config, generator, judge), progress)) is not None:
        return mend(config, dataset, depth, generator, finished, runtime, progress)
    with workspace(out, key(config, generator, judge)) as space:
        work = _Work(config, dataset, depth, generator, judge, runtime)
        ledger = Ledger(space.folder / LEDGER, space.key.digest).open()
        bank = work.bank(space.folder, ledger)
        bank.mend(damaged(space.folder, ledger.rows), progress)
        bank.fill(progress)
        draw_pictures(space.folder, ledger.rows, work.arrays, work.alignment)
        counts = work.summary(ledger.rows, space.folder)
        for warning in counts["warnings"]:
            progress.say(f"pairs: {warning}")
        return space.finish(**counts, ledger=ledger.head)


def mend(
    config: Config,
    dataset: Artifact,
    depth: Artifact,
    generator: Artifact,
    pairs: Artifact,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Verify a finished bank, and make images again that are damaged or missing.

    Args:
        config: as for `run`.
        dataset: as for `run`.
        depth: as for `run`.
        generator: as for `run`.
        pairs: the finished bank.
        runtime: device to run on.
        progress: where to report.

    Raises:
        StorageError: the ledger was changed, or an image does not come out as it was.
    """
    bad = damaged(pairs.folder, read_verified(pairs.folder, pairs.digest, pairs.manifest["counts"]["ledger"]))
    if bad:
        progress.say(f"pairs: {len(bad)} damaged or missing images are made again, as {bad[0]['file']}")
        with locked(pairs.folder):
            work = _Work(config, dataset, depth, generator, None, runtime)
            ledger = Ledger(pairs / LEDGER, pairs.digest).open()
            work.bank(pairs.folder, ledger).mend(bad, progress)
    return pairs


class _Work:
    """What making and mending share: arrays, maker, and the admission if there is one."""

    def __init__(
        self,
        config: Config,
        dataset: Artifact,
        depth: Artifact,
        generator: Artifact,
        judge: Artifact | None,
        runtime: Runtime,
    ) -> None:
        index = DatasetIndex.read(dataset)
        self.config, self.runtime, self.generator = config, runtime, generator
        self.records = index.part("train")
        digests = generator.manifest["counts"]["images"]
        base = resolve(config.generator.base, "pipeline")
        self.seen = seen_by_generator(generator.folder, digests, base)
        require_parents(self.records, [*index.part("validation"), *index.part("test")], self.seen)
        cache = cache_of(dataset.folder)
        self.arrays = load_arrays(self.records, config.data.size, cache)
        depths = read_depths(depth.folder, self.arrays.ids)
        self.maker = build_maker(config, generator / "controlnet", self.arrays, depths, runtime.device)
        self.admission: Admission | None = None
        if judge is not None:
            held_out = load_arrays(index.part("validation"), config.data.size, cache)
            self.admission = self._admission(judge, held_out)
        self.judge = judge

    def _admission(self, judge: Artifact, held_out: Arrays) -> Admission:
        settings, device = self.config.synthesis.admission, self.runtime.device
        groups = [record.group for record in self.records]
        phi = load_features(self.config.rla.features)
        trained = load_judge(judge.folder, device)
        copies = CopyCheck(phi, self.arrays, groups, held_out, seed=self.config.seed, device=device)
        thresholds = Thresholds(
            alignment=trained.threshold(settings.alignment_quantile),
            copy=copies.limits(settings.copy_quantile, self.config.synthesis.strength),
            exposure=ExposureLimits.of(self.arrays.images, settings.exposure_tolerance),
        )
        return Admission(trained, copies, self.arrays, groups, thresholds)

    def bank(self, folder: Path, ledger: Ledger) -> Bank:
        """The bank in a folder."""
        synthesis = self.config.synthesis
        names = ("steps", "guidance", "mask_guidance", "strength")
        facts = {name: getattr(synthesis, name) for name in names} | {"generator": self.generator.digest}
        if self.judge is not None:
            facts["judge"] = self.judge.digest
        return Bank(
            folder,
            ledger,
            self.maker,
            BankSize(
                synthesis.replicas, synthesis.admission.tries if self.admission else 1, synthesis.batch_size
            ),
            run=self.config.name,
            facts=facts,
            masks=[record.mask_sha256 for record in self.records],
            assess=self.admission.assess if self.admission else None,
        )

    @property
    def alignment(self) -> tuple[Sequence[float], float] | None:
        """Dice of the real images and the threshold, for the histogram."""
        if self.admission is None:
            return None
        return self.admission.judge.real_dice.tolist(), self.admission.thresholds.alignment

    def summary(self, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
        """What the manifest says about the bank in a folder."""
        stored = admitted_replicas(rows, self.arrays.ids)
        images = sum(map(len, stored))
        counts: dict[str, Any] = {"images": images, "parents": len(self.arrays), "tries": len(rows)}
        counts["seen"] = {who: sorted(image.sha256 for image in found) for who, found in self.seen.items()}
        if self.admission is None:
            return counts | {"warnings": []}
        without = [name for name, numbers in zip(self.arrays.ids, stored, strict=True) if not numbers]
        return counts | {
            "rejected": tally(rows),
            "without": without,
            "unjudgeable": self.admission.unjudgeable(),
            "thresholds": self.admission.thresholds_as_json(),
            "scores": {
                **_mean_scores(rows, self.admission),
                "diversity": _mean(_diversities(rows, folder, self.admission)),
            },
            "warnings": _warnings(images, len(self.arrays) * self.config.synthesis.replicas, without)
            + _blind(self.admission.unjudgeable()),
        }


def _mean_scores(rows: Sequence[Row], admission: Admission) -> dict[str, float | None]:
    """Means over admitted images, and what the judge reaches on real ones."""
    names = ("alignment", "distance_source", "distance_train", "distance_held_out")
    scores: list[Mapping[str, Any]] = [row["scores"] for row in rows if row["admitted"]]
    means = {name: _mean([score[name] for score in scores]) for name in names}
    return means | {
        "alignment_tried": _mean([row["scores"]["alignment"] for row in rows]),
        "alignment_real": float(admission.judge.real_dice.mean()),
        "alignment_chance": admission.judge.chance,
    }


def _diversities(rows: Sequence[Row], folder: Path, admission: Admission) -> list[float]:
    """For each mask with two counterparts or more, their mean distance from each other."""
    files: dict[str, list[Path]] = {}
    for row in rows:
        if row["admitted"]:
            files.setdefault(row["parent"], []).append(folder / row["file"])
    copies = admission.copies
    return [
        copies.spread(copies.features(np.stack([read_image(path) for path in paths])))
        for paths in files.values()
        if len(paths) > 1
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 4) if known else None


def _blind(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return [
        f"the judge finds no lesion in the real images {', '.join(names)} either: that their counterparts "
        "were rejected for alignment says little about them, and the bank has fewer of such lesions"
    ]


def _warnings(images: int, wanted: int, without: Sequence[str]) -> list[str]:
    warnings = []
    if without:
        warnings.append(
            f"no counterpart of {', '.join(without)} was admitted: training uses the real image instead, so "
            "mixing does nothing there"
        )
    if images < wanted / 2:
        warnings.append(
            f"only {images} of {wanted} places of the bank are filled: look at sheet.png; fine-tune longer, "
            "raise synthesis.mask_guidance or admission.tries, or lower admission.alignment_quantile"
        )
    return warnings
