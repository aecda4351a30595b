"""Stage 3: one segmenter, trained with one strategy and one seed.

Seeds are matched: the same seed gives every arm the same initial weights, the same order of samples and the
same geometric augmentation.
"""

from contextlib import closing
from pathlib import Path

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import DataError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_for
from mcpmix.core.stage_folder import Artifact, StageKey, workspace
from mcpmix.data.index import training_digest
from mcpmix.data.leakage import write_seen
from mcpmix.networks.segmenter import save_segmenter
from mcpmix.networks.weight_files import digest_of_source
from mcpmix.segmenter.arms import (
    Inputs,
    arm_settings,
    needs_pairs,
    needs_pseudo,
    needs_set,
    needs_unlabelled,
)
from mcpmix.segmenter.model_card import write_card
from mcpmix.segmenter.trainer import CHECKPOINT, Trainer


def key(config: Config, inputs: Inputs, arm: str, seed: int) -> StageKey:
    """What a segmenter depends on; of pairs and settings of strategies only what its arm uses."""
    weights = config.segmenter.weights
    settings = {
        "arm": arm,
        "size": config.data.size,
        "segmenter": config.segmenter.model_dump(mode="json", exclude={"weights"}),
        "weights": None if weights is None else digest_of_source(weights, "segmenter"),
        "train": config.train.model_dump(mode="json", exclude={"arms", "seeds", "strategies"}),
        "precision": config.runtime.precision,
        "deterministic": config.runtime.deterministic,
        **arm_settings(config, arm),
    }
    digests = {"dataset": training_digest(inputs.dataset)}
    if inputs.edits is not None:
        digests["edits"] = inputs.edits.digest
    elif needs_pairs(arm):
        settings["source"] = config.synthesis.source
        source = inputs.pairs if config.synthesis.source == "bank" else inputs.generator
        if source is None:
            raise DataError(f"The arm {arm} trains on pairs: run `mcpmix synthesize` first.")
        digests["pairs"] = source.digest
        if inputs.review is not None and inputs.review.changes and source is inputs.pairs:
            digests["review"] = inputs.review.digest
        if config.synthesis.makes_in_training:
            settings["synthesis"] = config.synthesis.model_dump(mode="json", exclude={"workers"})
    if needs_unlabelled(arm):
        source = inputs.pseudo if needs_pseudo(arm) else inputs.unlabelled
        if source is None:
            raise DataError(f"The arm {arm} trains on unlabelled images: name some in data.unlabelled.")
        digests["unlabelled"] = source.digest
    if needs_set(arm):
        if inputs.labelled_set is None:
            raise DataError(f"The arm {arm} trains on a set of synthetic images, which `mcpmix run` makes.")
        digests["labelled_set"] = inputs.labelled_set.digest
    return StageKey("train", settings, digests, seed_for(config.seed, seed))


def run(
    config: Config,
    inputs: Inputs,
    arm: str,
    seed: int,
    out: Path,
    runtime: Runtime,
    progress: Progress = SILENT,
) -> Artifact:
    """Train, choose the checkpoint on the validation split, save it."""
    with workspace(out, key(config, inputs, arm, seed)) as space:
        trainer = Trainer(config, inputs, arm, seed, space.folder, runtime)
        with closing(trainer):
            trainer.fit(progress)
        chosen = {"best_epoch": trainer.best_epoch, "validation_dsc": trainer.best_dsc}
        description = {
            "name": config.segmenter.name,
            "variant": config.segmenter.variant,
            **({"options": config.segmenter.options} if config.segmenter.options else {}),
            "size": config.data.size,
            "arm": arm,
            "seed": seed,
            "dataset": training_digest(inputs.dataset),
            **chosen,
        }
        trainer.network.load_state_dict(trainer.best)
        save_segmenter(trainer.network, space.folder, description)
        guessed = bool(inputs.dataset.manifest.get("counts", {}).get("groups_guessed"))
        write_card(space.folder, config, description, trainer.index, guessed=guessed)
        write_seen(space.folder, trainer.seen)
        steps = trainer.epochs * trainer.steps_per_epoch
        return space.finish(
            CHECKPOINT, epochs=trainer.epochs, steps=steps, **chosen, warnings=trainer.warnings
        )
