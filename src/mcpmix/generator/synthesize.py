"""Stage 2b: the bank of pairs. K counterparts per training mask, judged, with a ledger row for every try."""

from pathlib import Path
from typing import Any

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import Artifact, StageKey, locked, reuse, verify, workspace
from mcpmix.data.index import DatasetIndex, cache_of, load_arrays
from mcpmix.data.leakage import SeenImage, require_parents, seen_by_generator
from mcpmix.generator.admission import Admission, open_admission
from mcpmix.generator.bank import Bank, contact_sheet, draw_histogram
from mcpmix.generator.conditions import DepthMaps
from mcpmix.generator.counterparts import build_maker
from mcpmix.generator.few_steps import drawing_key, few_steps_facts, seen_by_lora
from mcpmix.generator.ledger import LEDGER, Ledger, damaged, read_verified
from mcpmix.networks.features import features_digest
from mcpmix.networks.weight_files import resolve

# What the bank does not depend on: settings of pairs made in training.
_IN_TRAINING = {"source", "refresh", "budget", "workers", "admission"}
_IN_ROWS = ("steps", "guidance", "mask_guidance", "strength")  # settings that rows repeat


def key(config: Config, generator: Artifact, judge: Artifact | None = None) -> StageKey:
    """What the pairs depend on; data set and depth are part of the generator's own identity."""
    settings = drawing_key(config, _IN_TRAINING)
    inputs = {"generator": generator.digest}
    admission = config.synthesis.admission
    if admission.enabled and judge is not None:
        settings["admission"] = admission.model_dump(mode="json", exclude={"judge"})
        settings["features"] = features_digest(config.rla.features)
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
    """Generate missing counterparts; in a finished bank, repair those that are damaged or missing.

    Without a judge, all are admitted.

    Raises:
        StorageError: the ledger was changed, or a repaired image differs from its digest.
    """
    inputs = config, dataset, depth, generator, runtime
    stage_key = key(config, generator, judge)
    if (finished := reuse(out, stage_key, progress, verified=False)) is not None:
        rows = read_verified(out, finished.digest, finished.manifest["counts"]["ledger"])
        if bad := damaged(out, rows):
            progress.say(f"pairs: {len(bad)} damaged or missing images are repaired, as {bad[0]['file']}")
            with locked(out):
                bank, _, _ = _open_bank(*inputs, None, out, finished.digest)
                bank.repair(bad, progress)
        verify(finished)
        return finished
    with workspace(out, stage_key) as space:
        bank, admission, seen = _open_bank(*inputs, judge, space.folder, stage_key.digest)
        bank.repair(damaged(space.folder, bank.ledger.rows), progress)
        bank.fill(progress)
        rows, arrays = bank.ledger.rows, bank.maker.arrays
        counts: dict[str, Any] = {"parents": len(arrays), "tries": len(rows), "warnings": []}
        counts["images"] = sum(bool(row["admitted"]) for row in rows)
        counts["seen"] = {who: sorted(image.sha256 for image in found) for who, found in seen.items()}
        contact_sheet(space.folder, rows, arrays).save(space.folder / "sheet.png", optimize=True)
        if admission is not None:
            real = admission.judge.real_dice.tolist()
            draw_histogram(space.folder / "alignment.png", rows, real, admission.alignment)
            counts |= admission.summary(rows, space.folder, config.synthesis.replicas)
        for warning in counts["warnings"]:
            progress.say(f"pairs: {warning}")
        return space.finish(**counts, ledger=bank.ledger.head)


def _open_bank(
    config: Config,
    dataset: Artifact,
    depth: Artifact,
    generator: Artifact,
    runtime: Runtime,
    judge: Artifact | None,
    folder: Path,
    root: str,
) -> tuple[Bank, Admission | None, dict[str, list[SeenImage]]]:
    """The bank in a folder, the admission to it, and which images the networks of the generator have seen."""
    index, cache = DatasetIndex.read(dataset), cache_of(dataset.folder)
    records, held_out = index.part("train"), index.part("validation")
    groups = [record.group for record in records]
    base = resolve(config.generator.base, "pipeline")
    seen = seen_by_generator(generator.folder, generator.manifest["counts"]["images"], base)
    seen |= seen_by_lora(config)
    require_parents(records, [record for record in index.records if record.split != "train"], seen)
    ledger = Ledger(folder / LEDGER, root)
    arrays = load_arrays(records, config.data.size, cache)
    depths = DepthMaps(depth.folder, arrays.ids)
    maker = build_maker(config, generator.folder, arrays, depths, runtime.device)
    synthesis = config.synthesis
    facts = {name: getattr(synthesis, name) for name in _IN_ROWS} | few_steps_facts(config)
    facts["generator"] = generator.digest
    admission = None
    if judge is not None:
        facts["judge"] = judge.digest
        unseen = load_arrays(held_out, config.data.size, cache)
        admission = open_admission(config, judge.folder, arrays, groups, unseen, runtime.device)
    bank = Bank(
        folder,
        ledger,
        maker,
        replicas=synthesis.replicas,
        tries=synthesis.admission.tries if admission else 1,
        batch_size=synthesis.batch_size,
        run=config.name,
        facts=facts,
        masks=[record.mask_sha256 for record in records],
        assess=admission.assess if admission else None,
    )
    return bank, admission, seen
