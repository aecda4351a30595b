"""Edits for DiffuseMix: each training image under each instruction, made once and stored.

Only run where `editor.model` names an editor. Without it DiffuseMix takes the counterparts of the generator.
"""

from pathlib import Path

from mcpmix.config import Config
from mcpmix.core.device import Runtime
from mcpmix.core.errors import ConfigError
from mcpmix.core.pixels import as_images, as_pixels, write_png
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import seed_for
from mcpmix.core.stage_folder import Artifact, StageKey, reuse, workspace
from mcpmix.data.index import DatasetIndex, cache_of, load_arrays, training_digest
from mcpmix.networks.editor import InstructEditor
from mcpmix.networks.weight_files import folder_digest, resolve, source_name

_BATCH = 4  # images edited at once: 512 px fit into 8 GB


def key(config: Config, dataset: Artifact) -> StageKey:
    """What the edits depend on."""
    settings = {
        "editor": {**config.editor.model_dump(mode="json"), "model": source_name(str(config.editor.model))},
        "weights": folder_digest(_editor(config)),
        "size": config.data.size,
    }
    return StageKey("edit", settings, {"dataset": training_digest(dataset)}, config.seed)


def run(
    config: Config, dataset: Artifact, out: Path, runtime: Runtime, progress: Progress = SILENT
) -> Artifact:
    """Make the edits that are missing: images/<id>/<number of the instruction>.png."""
    if (finished := reuse(out, key(config, dataset), progress)) is not None:
        return finished
    settings = config.editor
    records = DatasetIndex.read(dataset).part("train")
    with workspace(out, key(config, dataset)) as space:
        places = {
            (index, number): space.folder / "images" / record.id / f"{number}.png"
            for index, record in enumerate(records)
            for number in range(len(settings.instructions))
        }
        todo = [request for request, path in places.items() if not path.exists()]
        arrays = load_arrays(records, config.data.size, cache_of(dataset.folder))
        editor = InstructEditor(_editor(config), runtime.device, runtime.precision)
        with progress.track("edit", len(places), len(places) - len(todo)) as advance:
            for start in range(0, len(todo), _BATCH):
                chunk = todo[start : start + _BATCH]
                edited = editor.edit(
                    as_images(arrays.images[[index for index, _ in chunk]]),
                    [settings.instructions[number] for _, number in chunk],
                    [seed_for("edit", config.seed, records[index].id, number) for index, number in chunk],
                    steps=settings.steps,
                    guidance=settings.guidance,
                    image_guidance=settings.image_guidance,
                )
                for request, image in zip(chunk, as_pixels(edited), strict=True):
                    write_png(places[request], image)
                advance(len(chunk))
        return space.finish(edits=len(places), instructions=len(settings.instructions))


def _editor(config: Config) -> Path:
    if config.editor.model is None:
        raise ConfigError("editor.model: none is named; give the hub id or folder of an editor.")
    return resolve(config.editor.model, "pipeline")
