"""Stage 2a: the judge of synthetic images, trained on real training images only."""

from pathlib import Path

from mcpmix.core.artifacts import Artifact, StageKey, workspace
from mcpmix.core.config import Config
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.runtime import Runtime
from mcpmix.data.arrays import cache_of, load_arrays
from mcpmix.data.index import DatasetIndex
from mcpmix.models.sources import digest_of_source
from mcpmix.synthesis.judge import JudgeSettings, train_judge


def key(config: Config, dataset: Artifact) -> StageKey:
    """What the judge depends on."""
    judge = config.synthesis.admission.judge
    settings = {"judge": judge.model_dump(mode="json"), "size": config.data.size}
    if judge.weights is not None:
        settings |= {"weights": digest_of_source(judge.weights, "segmenter")}
    return StageKey("judge", settings, {"dataset": dataset.digest}, config.seed)


def run(
    config: Config, dataset: Artifact, out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Train the judge, or continue it.

    Args:
        config: sections `synthesis.admission.judge` and `data.size`.
        dataset: the data set's artefact; only its training part is read.
        out: folder of the result.
        runtime: device to run on.
        progress: where to report.
    """
    records = DatasetIndex.read(dataset / "index.json").part("train")
    with workspace(out, key(config, dataset)) as space:
        judge = train_judge(
            load_arrays(records, config.data.size, cache_of(dataset.folder)),
            [record.group for record in records],
            JudgeSettings(**config.synthesis.admission.judge.model_dump()),
            seed=config.seed,
            device=runtime.device,
            folder=space.folder,
            progress=progress,
        )
        dice = judge.real_dice
        progress.say(
            f"judge: Dice {dice.mean():.2f} on real images of groups that it has not seen, "
            f"{judge.chance:.2f} against masks of others"
        )
        return space.finish(
            images=len(dice), folds=len(judge.networks), dice=float(dice.mean()), chance=judge.chance
        )
