"""What trainings share: the loop that can be resumed, checkpoints, logs, optimisers and learning rates.

A checkpoint has no pickles: it is a nested state in one safetensors file. Tensors become entries of the file;
everything around them (dictionaries, lists, numbers, strings) is kept as JSON in its header. An optimiser's
state dict, whose keys are integers, survives the round trip. The header also names the stage that the
checkpoint belongs to, and a checksum of the tensors: neither a foreign nor a damaged one is continued.
"""

import json
import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from torch.optim.swa_utils import AveragedModel

from mcpmix.core.errors import DependencyError, ModelError, StorageError, TrainingError
from mcpmix.core.files import parse_json, write_text, written
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.stage_folder import place_in_stage

State = Any  # nested dict / list / tuple of tensors and JSON scalars
T = TypeVar("T")

_FORMAT = "mcpmix-state-1"
_SHOWN_STEPS = 20  # whose mean loss is on the screen


def save_state(path: Path, state: State) -> None:
    """Write a nested state to `path`; the old file stays until the new one is complete."""
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _pack(state, tensors)
    facts = {"format": _FORMAT, "stage": place_in_stage(path), "checksum": _checksum(tensors)}
    with written(path) as temporary:
        save_file(tensors, temporary, metadata={**facts, "skeleton": json.dumps(skeleton)})


def load_state(path: Path, device: str = "cpu") -> State:
    """Read back what `save_state` wrote.

    Raises:
        ModelError: the file is missing, damaged, of another kind, or belongs to another stage.
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
    except (SafetensorError, OSError) as error:
        raise ModelError(f"Cannot read the checkpoint {path}: {error}. Delete it to start over.") from error
    if metadata.get("stage") != place_in_stage(path):
        raise ModelError(
            f"The checkpoint {path} belongs to another stage or other settings than its folder. Put the "
            "right one back, or delete it to start over."
        )
    if metadata.get("checksum") != _checksum(tensors):
        raise ModelError(f"The checkpoint {path} is damaged: its checksum differs. Delete it to start over.")
    try:
        return _unpack(parse_json(metadata["skeleton"]), tensors)
    except (KeyError, ValueError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise ModelError(f"The checkpoint {path} is damaged ({error!r}). Delete it to start over.") from error


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """CRC-32 of names, types, shapes and bytes."""
    value = 0
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.cpu().reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


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
    """Call `step(n)` for n = 0 .. steps-1, starting where the checkpoint stands; a loss must be finite.

    Args:
        step: does one optimiser step and returns its loss.
        save_every: steps between two saves of `state`; the last step is always saved.
        after_save: called with the number of finished steps after each save, e.g. to export weights. A
            resumed run calls it again for the state that it starts from, since a kill may have come between
            the two; so it must be idempotent.
        on_resume: called with the number of finished steps before the first one, e.g. to cut a log to them.
        also_save_every: a second interval of saves, e.g. that of something `after_save` does; 0: none.
        write: False for a process that takes part in the steps while another one saves: it restores the
            state, but neither saves nor calls `after_save`.
    """
    done = restore(state, checkpoint)
    if on_resume is not None:
        on_resume(done)
    if done and write and after_save is not None:
        after_save(done)
    recent: deque[float] = deque(maxlen=_SHOWN_STEPS)
    with progress.track(title, steps, done) as advance:
        for index in range(done, steps):
            loss = step(index)
            if not math.isfinite(loss):
                kept = f"last good state: {checkpoint}" if checkpoint.exists() else "no state saved yet"
                raise TrainingError(
                    f"{title}: the loss of step {index} is {loss} ({kept}). "
                    "Lower the learning rate or use float32."
                )
            recent.append(loss)
            advance(1, f"loss {sum(recent) / len(recent):.4f}")
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
    """Load the checkpoint into `state` if there is one; returns the number of finished steps."""
    if not checkpoint.exists():
        return 0
    saved = load_state(checkpoint)
    try:
        if missing := state.keys() - saved["state"].keys():
            raise StorageError(
                f"{checkpoint} lacks {', '.join(sorted(missing))}: another version wrote it. Delete it to "
                "begin again."
            )
        for name, part in state.items():
            part.load_state_dict(saved["state"][name])
        return int(saved["steps"])
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise does_not_fit(checkpoint, error) from error


def does_not_fit(checkpoint: Path, error: Exception) -> ModelError:
    """What to say of a checkpoint that is whole, but not one of what is trained here."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return ModelError(f"The checkpoint {checkpoint} does not fit ({reason}). Delete it to start over.")


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items in the same order, each made in a background thread while the one before is in use.

    Whoever makes the items must not read what the user of the items changes. An error in making an item is
    raised where the item would have come; when the user stops early, the item in the making is waited for.
    Only the background thread calls `next(items)`.
    """
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # anything but `end` is a T


class JsonLines:
    """A log of JSON rows, one per event, appended; a resumed run drops the rows it is about to redo."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, **row: object) -> None:
        """Add one row and flush it to the file."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """All complete rows; a last line cut short by a kill is left out, any other damage is an error."""
        if not self.path.exists():
            return []
        # Bytes: a kill may cut a character in two, and splitlines() would also split at U+2028 inside a row.
        *lines, last = self.path.read_bytes().split(b"\n")
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            try:
                rows.append(parse_json(line))
            except ValueError as error:
                raise StorageError(
                    f"{self.path}, line {number}, is not JSON ({error}); a kill cuts only the last line. "
                    "Restore the file, or delete its folder to redo all of it."
                ) from error
        try:
            return [*rows, parse_json(last)]
        except ValueError:
            return rows

    def rewrite(self, rows: Iterable[dict[str, Any]]) -> None:
        """Replace the file's rows, whole or not at all."""
        write_text(self.path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


# --- optimisers -------------------------------------------------------------------------------------------


def build_adamw(groups: list[dict[str, Any]], weight_decay: float, name: str) -> Optimizer:
    """AdamW over parameter groups, each with "params" and "lr".

    The name is "adamw", or "adamw-8bit": moments in 8 bits, a quarter of the memory.
    """
    require_optimiser(name)
    if name == "adamw":
        return torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)
    optimiser: Optimizer = import_module("bitsandbytes.optim").AdamW8bit(groups, weight_decay=weight_decay)
    return optimiser


def require_optimiser(name: str) -> None:
    """Raise a DependencyError if the package of an optimiser is not installed."""
    if name == "adamw-8bit" and find_spec("bitsandbytes") is None:
        raise DependencyError(
            "finetune.optimiser: adamw-8bit needs the package bitsandbytes, which is not installed. Get it "
            "with `pip install 'mcpmix[8bit]'`, or set finetune.optimiser=adamw, which takes six more bytes "
            "per trained weight."
        )


# --- courses of learning rates: the rate that an optimiser has when it is passed in is the full one ---------


def warm_up(optimiser: Optimizer, step: int, warmup_steps: int) -> None:
    """Set the rates of a step, from 0: a linear rise over `warmup_steps` to each group's own rate.

    The rates depend on the step and not on earlier calls, so there is nothing to save.
    """
    factor = min(1.0, (step + 1) / (warmup_steps + 1))
    for group in optimiser.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def cosine(optimiser: Optimizer, steps: int) -> LRScheduler:
    """For the first group: a linear rise over a twentieth of the steps, then half a cosine down to 0.

    All other groups keep their rates.
    """
    rise = max(1, round(0.05 * steps))

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))

    constant = [lambda _: 1.0] * (len(optimiser.param_groups) - 1)
    return LambdaLR(optimiser, [factor, *constant])


def one_cycle(optimiser: Optimizer, steps: int, warmup_share: float = 0.05) -> LRScheduler:
    """A rise over the first `warmup_share` of the steps, then a fall to nearly 0; momentum runs opposite."""
    full = [group["lr"] for group in optimiser.param_groups]
    return OneCycleLR(optimiser, full, total_steps=steps, pct_start=warmup_share)


def plateau(
    optimiser: Optimizer, steps: int, warmup_steps: int = 100, decay_share: float = 0.2
) -> LRScheduler:
    """Constant between a linear rise and a linear fall to 0 over the last `decay_share` of the steps."""

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / warmup_steps, (steps - step) / (decay_share * steps))

    return LambdaLR(optimiser, factor)


def fit(
    loss: Callable[[int], Tensor],
    model: nn.Module,
    optimiser: Optimizer,
    course: Callable[[Optimizer, int], LRScheduler],
    steps: int,
    checkpoint: Path,
    *,
    average: AveragedModel | None = None,
    largest_gradient: float = 1.0,
    save_every: int = 100,
    also_save_every: int = 0,
    after_save: Callable[[int], None] | None = None,
    progress: Progress = SILENT,
) -> None:
    """Train `model` in place; a killed training resumes from its checkpoint.

    Args:
        loss: the loss of step n, a 0-d tensor; its data must depend on n alone.
        course: makes the course of learning rates from the optimiser and the number of steps.
        checkpoint: its stem is what the progress bar says.
        average: moving average of `model`, kept up to date.
        largest_gradient: norm that a gradient is clipped to; infinity: never.
        save_every: steps between two checkpoints; `also_save_every` is a second interval, 0: none.
        after_save: called with the number of finished steps after each.
    """
    rates = course(optimiser, steps)
    state: dict[str, Stateful] = {"model": model, "optimiser": optimiser, "rates": rates}
    if average is not None:
        state["average"] = average

    def step(index: int) -> float:
        value = loss(index)
        optimiser.zero_grad(set_to_none=True)
        value.backward()
        if math.isfinite(largest_gradient):
            nn.utils.clip_grad_norm_(model.parameters(), largest_gradient)
        optimiser.step()
        rates.step()
        if average is not None:
            average.update_parameters(model)
        return value.item()

    run_steps(
        step,
        steps=steps,
        state=state,
        checkpoint=checkpoint,
        save_every=save_every,
        also_save_every=also_save_every,
        title=checkpoint.stem,
        progress=progress,
        after_save=after_save,
    )
