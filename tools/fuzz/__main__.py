"""Feeds damaged files to everything that reads files: `python -m tools.fuzz [--count 20000] [--seed 0]`.

Each input is a whole file of its kind, changed where it hurts: bits, lengths, numbers at their limits, fields
of another type, texts nested thousands deep. It must be read, or refused with a message (an McpmixError).
Anything else is a failure: another exception, ten seconds, two gigabytes. A seed gives the same inputs again;
those that failed are kept in build/fuzz. Exit code 1 if there were any.
"""

import argparse
import json
import logging
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tools.fuzz.damage import Rng
from tools.fuzz.targets import TARGETS

from mcpmix.core.errors import McpmixError
from mcpmix.core.files import write_json

SECONDS, GIGABYTES = 10, 2
KEPT = Path(__file__).parents[2] / "build" / "fuzz"


@dataclass
class Outcome:
    """What became of the inputs of a run."""

    read: Counter[str] = field(default_factory=Counter)  # by target
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)  # target, number and what happened
    slowest: float = 0.0  # seconds


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise a TimeoutError after so many seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(count: int, seed: int, names: list[str], kept: Path | None = None) -> Outcome:
    """Feed `count` inputs, dealt over the targets in turn.

    Args:
        kept: folder for the inputs that failed.
    """
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as place:
        for number in range(count):
            name = names[number % len(names)]
            folder = Path(place) / str(number)
            folder.mkdir()
            read = TARGETS[name](Rng(f"{seed} {name} {number}"), folder)
            start = time.monotonic()
            try:
                with time_limit(SECONDS):
                    read()
                outcome.read[name] += 1
            except McpmixError:
                outcome.refused[name] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{Path(last.filename).name}:{last.lineno}"
                outcome.failures.append(
                    f"{name} {number}: {type(error).__name__} at {where}: {str(error)[:150]}"
                )
                if kept is not None:
                    shutil.copytree(folder, kept / f"{name}-{seed}-{number}", dirs_exist_ok=True)
            outcome.slowest = max(outcome.slowest, time.monotonic() - start)
            shutil.rmtree(folder)
    return outcome


def peak_gigabytes() -> float:
    """The most memory that this process has had."""
    found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 2**20 if found else 0.0


def main() -> int:
    """Run, and print the counts as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file for the counts")
    parser.add_argument("--only", choices=TARGETS, help="one kind of input")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    outcome = fuzz(
        arguments.count, arguments.seed, [arguments.only] if arguments.only else list(TARGETS), KEPT
    )
    memory = peak_gigabytes()
    for failure in outcome.failures:
        print(failure, file=sys.stderr)
    facts = {
        "command": f"python -m tools.fuzz --count {arguments.count} --seed {arguments.seed}",
        "inputs": arguments.count,
        "read": outcome.read.total(),
        "refused with a message": outcome.refused.total(),
        "failures": len(outcome.failures),
        "slowest input, seconds": round(outcome.slowest, 2),
        "peak memory, GB": round(memory, 2),
    }
    print(json.dumps(facts, indent=1))
    if arguments.out is not None:
        write_json(arguments.out, facts)
    return int(bool(outcome.failures) or memory > GIGABYTES)


if __name__ == "__main__":
    sys.exit(main())
