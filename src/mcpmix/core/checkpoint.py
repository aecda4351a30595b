"""Checkpoints without pickles: a nested state in one safetensors file, written whole or not at all.

Tensors become entries of the file; everything around them (dictionaries, lists, numbers, strings) is kept as
JSON in its header. An optimiser's state dict, whose keys are integers, survives the round trip.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mcpmix.core.errors import ModelError, StorageError, TrainingError
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import written

State = Any  # nested dict / list / tuple of tensors and JSON scalars

_FORMAT = "mcpmix-state-1"


def save_state(path: Path, state: State) -> None:
    """Write a nested state to `path`; the old file stays until the new one is complete."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _pack(state, tensors)
    with written(path) as temporary:
        save_file(tensors, temporary, metadata={"format": _FORMAT, "skeleton": json.dumps(skeleton)})


def load_state(path: Path, device: str = "cpu") -> State:
    """Read back what `save_state` wrote.

    Raises:
        ModelError: the file is missing, damaged or of another format.
    """
    try:
        with safe_open(path, framework="pt", device=device) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ModelError(
                    f"{path} is not a checkpoint of this program: its format is "
                    f"{metadata.get('format')!r}, expected {_FORMAT!r}. Delete it to start over."
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, FileNotFoundError) as error:
        raise ModelError(f"Cannot read the checkpoint {path}: {error}. Delete it to start over.") from error
    return _unpack(json.loads(metadata["skeleton"]), tensors)


def _pack(node: State, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Replace each tensor by a reference; mark containers so that their type and key types come back."""
    if isinstance(node, torch.Tensor):
        name = f"t{len(tensors)}"
        # A clone: two names may share memory (tied weights), which safetensors refuses.
        tensors[name] = node.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(node, dict):
        return {"dict": [[key, _pack(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_pack(value, tensors) for value in node]}
    if node is None or isinstance(node, bool | int | float | str):
        return {"value": node}
    raise TypeError(f"a checkpoint cannot hold {type(node).__name__}")


def _unpack(node: dict[str, Any], tensors: dict[str, torch.Tensor]) -> State:
    kind, content = next(iter(node.items()))
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unpack(value, tensors) for key, value in content}
    if kind == "list":
        return [_unpack(value, tensors) for value in content]
    if kind == "tuple":
        return tuple(_unpack(value, tensors) for value in content)
    return content


class Stateful(Protocol):
    """Anything with a state dict: a module, an optimiser, a scheduler."""

    def state_dict(self) -> dict[str, Any]: ...  # noqa: D102

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...  # noqa: D102


def run_steps(
    step: Callable[[int], float],
    *,
    steps: int,
    state: Mapping[str, Stateful],
    checkpoint: Path,
    save_every: int,
    title: str,
    progress: Progress = SILENT,
    after_save: Callable[[int], None] | None = None,
    on_resume: Callable[[int], None] | None = None,
    also_save_every: int = 0,
    write: bool = True,
) -> None:
    """Call `step(n)` for n = 0 .. steps-1, starting where the checkpoint stands.

    Args:
        step: does one optimiser step and returns its loss.
        state: what is saved and restored, by name.
        save_every: steps between two saves; the last step is always saved.
        after_save: called with the number of finished steps after each save, e.g. to export weights. A
            resumed run calls it again for the state that it starts from, since a kill may have come between
            the two; so it must be idempotent.
        on_resume: called with the number of finished steps before the first one, e.g. to cut a log to them.
        also_save_every: a second interval of saves, e.g. that of something `after_save` does; 0: none.
        write: False for a process that takes part in the steps while another one saves: it restores the
            state, but neither saves nor calls `after_save`.

    Raises:
        TrainingError: a loss is not finite.
    """
    done = restore(state, checkpoint)
    if on_resume is not None:
        on_resume(done)
    if done and write and after_save is not None:
        after_save(done)
    smooth = math.nan
    with progress.track(title, steps, done) as advance:
        for index in range(done, steps):
            loss = step(index)
            if not math.isfinite(loss):
                kept = f"last good state: {checkpoint}" if checkpoint.exists() else "no state saved yet"
                raise TrainingError(
                    f"{title}: the loss of step {index} is {loss} ({kept}). "
                    "Lower the learning rate or use float32."
                )
            smooth = loss if math.isnan(smooth) else 0.98 * smooth + 0.02 * loss
            advance(1, f"loss {smooth:.4f}")
            finished = index + 1
            due = finished % save_every == 0 or finished == steps
            if write and (due or (also_save_every and finished % also_save_every == 0)):
                save_state(
                    checkpoint,
                    {"steps": finished, "state": {name: part.state_dict() for name, part in state.items()}},
                )
                if after_save is not None:
                    after_save(finished)


def restore(state: Mapping[str, Stateful], checkpoint: Path) -> int:
    """Load the checkpoint into `state` if there is one; returns the number of finished steps.

    Raises:
        StorageError: it lacks a part, as one of another version may.
    """
    if not checkpoint.exists():
        return 0
    saved = load_state(checkpoint)
    if missing := state.keys() - saved["state"].keys():
        raise StorageError(
            f"{checkpoint} lacks {', '.join(sorted(missing))}: another version wrote it. Delete it to begin "
            "again."
        )
    for name, part in state.items():
        part.load_state_dict(saved["state"][name])
    return int(saved["steps"])
