"""Copies of training logs for TensorBoard, MLflow and Weights & Biases, on this machine; nothing is sent.

The JSON lines in a segmenter's folder are the source. A tracker is filled from them anew whenever a training
starts or resumes, so it never holds an epoch twice, and turning it on late loses nothing.
"""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from mcpmix.core.errors import DependencyError

Row = Mapping[str, Any]


class Tracker(Protocol):
    """Takes rows of a log, one per epoch."""

    def __call__(self, row: Row) -> None: ...  # noqa: D102


def flat_values(row: Row) -> dict[str, float]:
    """The finite figures of a row: `loss`, `validation/dsc`, ... without the epoch."""
    values: dict[str, float] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            values |= {f"{name}/{key}": figure for key, figure in flat_values(value).items()}
        elif name != "epoch" and isinstance(value, int | float) and math.isfinite(value):
            values[name] = float(value)
    return values


def require_trackers(names: Iterable[str]) -> None:
    """Raise a DependencyError if the package of a tracker is not installed."""
    if missing := [name for name in names if find_spec(name) is None]:
        raise DependencyError(
            f"track.{missing[0]} needs the package {missing[0]}, which is not installed. Get it with "
            "`pip install 'mcpmix[track]'`, or leave it off: the log in the segmenter's folder is complete."
        )


@contextmanager
def tracker(name: str, run: Path, cell: str, rows: Iterable[Row]) -> Iterator[Tracker]:
    """A tracker for new rows, with those that there are already.

    Args:
        name: `tensorboard`, `mlflow` or `wandb`.
        run: the run's folder; gets `track/<tracker>/`.
        cell: name of the training: `<arm>/seed-<n>`.
    """
    require_trackers([name])
    with _TRACKERS[name](run / "track" / name, run.name, cell) as write:
        for row in rows:
            write(row)
        yield write


@contextmanager
def _tensorboard(folder: Path, _run: str, cell: str) -> Iterator[Tracker]:
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(folder / cell, ignore_errors=True)
    writer: Any = SummaryWriter(str(folder / cell))  # without types

    def write(row: Row) -> None:
        for name, value in flat_values(row).items():
            writer.add_scalar(name, value, row["epoch"])
        writer.flush()

    try:
        yield write
    finally:
        writer.close()


@contextmanager
def _mlflow(folder: Path, run: str, cell: str) -> Iterator[Tracker]:
    from mlflow.tracking import MlflowClient

    folder.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(tracking_uri=f"sqlite:///{folder.resolve() / 'mlflow.db'}")
    found = client.get_experiment_by_name(run)
    place = (folder / "artifacts").resolve().as_uri()
    experiment = found.experiment_id if found else client.create_experiment(run, artifact_location=place)
    for old in client.search_runs([experiment]):
        if old.info.run_name == cell:
            client.delete_run(old.info.run_id)
    identity = client.create_run(experiment, run_name=cell).info.run_id

    def write(row: Row) -> None:
        for name, value in flat_values(row).items():
            client.log_metric(identity, name, value, step=row["epoch"])

    yield write
    client.set_terminated(identity)


@contextmanager
def _wandb(folder: Path, run: str, cell: str) -> Iterator[Tracker]:
    import wandb

    place = folder / cell
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    session = wandb.init(project="mcpmix", group=run, name=cell, dir=str(place), mode="offline")

    def write(row: Row) -> None:
        session.log(flat_values(row), step=row["epoch"])

    try:
        yield write
    finally:
        session.finish()


_TRACKERS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
