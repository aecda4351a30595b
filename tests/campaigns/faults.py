"""A small run of every stage, disturbed until it is done: its result must be that of a quiet run, to the bit.

    python -m tests.campaigns.faults kills --count 200 --seed 0
    python -m tests.campaigns.faults disk                        # Linux, as root: mounts a small file system

`kills` sends SIGKILL at random moments, in turn to the command, to one of its worker processes and to all of
them, and starts the command again; a finished run is compared, deleted and begun anew. `disk` runs on a file
system that is too small, makes it read-only as well, lets it grow a little, and goes on. Both take long and
are not part of the tests; results are kept in benchmarks/results/.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from PIL import Image
from tests.helpers.results import differences, digests

from mcpmix.core.files import write_json
from mcpmix.phantom import render

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SIZE = 64
CONFIG = f"""
preset: demo-fast
name: run
output: OUTPUT
data:
  size: {SIZE}
  unlabelled: [UNLABELLED]
  phantom: {{train_patients: 3, validation_patients: 1, test_patients: 2, frames_per_patient: 3}}
adapt: {{steps: 8, batch_size: 4, save_every: 2, looks: 2}}
pseudo: {{agreement: 0.01}}
finetune: {{start: pseudo, pseudo_steps: 6, steps: 12, save_every: 3, batch_size: 2}}
synthesis:
  steps: 2
  admission: {{enabled: true, tries: 1, judge: {{steps: 120, batch_size: 4, folds: 2}}}}
train:
  arms: [full-sup, mcpmix-rla, pseudo-label]
  seeds: [0, 1]
  epochs: 4
  validate_every: 2
  batch_size: 4
runtime: {{threads: 1, jobs: 2}}
"""
STORAGE_ERROR = 5  # exit code; see docs/integrity.md
ORPHANS_LIVE = 5.0  # seconds, at most


def prepare(folder: Path, output: Path) -> list[str]:
    """Write unlabelled frames and a configuration; the command that runs it."""
    images = folder / "unlabelled"
    images.mkdir(exist_ok=True)
    for patient in range(8):
        Image.fromarray(render(7, patient, 0, SIZE).image).save(images / f"{patient}.png")
    config = folder / f"{output.name}.yaml"
    config.write_text(CONFIG.replace("OUTPUT", str(output)).replace("UNLABELLED", str(images)))
    return [sys.executable, "-m", "mcpmix", "run", str(config)]


def whole(folder: Path) -> tuple[Path, float]:
    """A run that nothing disturbs, and the seconds that it took."""
    started = time.monotonic()
    done = subprocess.run(prepare(folder, folder / "whole"), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The undisturbed run failed:\n{done.stderr}")
    return folder / "whole" / "run", time.monotonic() - started


def stage_at_work(run: Path) -> str:
    """The stage whose unfinished folder was written to last; `start` if there is none."""
    places = [path for path in run.rglob("*.partial") if path.is_dir()]
    if not places:
        return "start"
    newest = max(places, key=lambda path: path.stat().st_mtime)
    return newest.relative_to(run).parts[0].removesuffix(".partial")


# --- kills -------------------------------------------------------------------------------------------------


def campaign_of_kills(folder: Path, count: int, seed: int) -> dict[str, object]:
    """Kill, resume, compare."""
    rng, (reference, seconds) = random.Random(seed), whole(folder)
    command, run = prepare(folder, folder / "killed"), folder / "killed" / "run"
    kinds, stages, wrong, compared, killed = Counter(), Counter(), [], 0, 0
    while not wrong:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            # Long enough to get somewhere, short enough to be hit several times on the way.
            limit = rng.uniform(0.05, 0.6) * seconds if killed < count else None
            _, message = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            stage = stage_at_work(run)
            kind, problem = kill(process, ("command", "worker", "group")[killed % 3])
            wrong += [f"{kind} killed in {stage}: {problem}"] if problem else []
            killed += 1
            kinds[kind] += 1
            stages[stage] += 1
            print(f"{killed}: {kind} in {stage}", flush=True)
            continue
        if process.returncode:
            wrong.append(f"exit code {process.returncode}: {message[-300:]}")
        wrong += differences(reference, run)
        compared += len(digests(run))
        print(f"finished after {killed} kills; wrong: {wrong}", flush=True)
        if killed >= count:
            break
        shutil.rmtree(run)
    facts = {"kills": dict(kinds), "stages": dict(stages), "files compared": compared, "seed": seed}
    return {**facts, "wrong": wrong}


def kill(process: "subprocess.Popen[str]", kind: str) -> tuple[str, str]:
    """Kill the command, a worker of it, or all; what was killed in the end, and what went wrong then."""
    workers = [pid for pid in members(process.pid) if pid != process.pid]
    if kind == "worker" and not workers:  # this stage has none
        kind = "command"
    victims = {"command": [process.pid], "worker": workers[-1:], "group": [process.pid, *workers]}
    for victim in victims[kind]:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    _, message = process.communicate()  # when a worker dies, the command finishes what the others do
    # A worker that is being started when its parent dies ends in Python's own code, before any of ours.
    if "Traceback" in message and "pickle.load(from_parent)" not in message:
        return kind, message[-300:]
    deadline = time.monotonic() + ORPHANS_LIVE
    while left := members(process.pid):
        if time.monotonic() > deadline:
            return kind, f"{len(left)} processes are left after {ORPHANS_LIVE:.0f} s"
        time.sleep(0.05)
    return kind, ""


def members(group: int) -> list[int]:
    """Living processes of a process group."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it may have ended meanwhile
            state, _, owner = place.read_text().rsplit(")", 1)[1].split()[:3]
            if int(owner) == group and state != "Z":
                found.append(int(place.parent.name))
    return found


# --- full and read-only storage ----------------------------------------------------------------------------


def campaign_on_disk(folder: Path) -> dict[str, object]:
    """Let the disk be full, then read-only, then a little larger, until the run is done."""
    reference, _ = whole(folder)
    needed = sum(path.stat().st_blocks * 512 for path in reference.rglob("*"))
    disk, size = folder / "disk", 64 * 1024
    disk.mkdir()
    command, stages, wrong = prepare(folder, disk), Counter(), []
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)], check=True)

    def attempt(what: str) -> int:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        stage, told = stage_at_work(disk / "run"), " ".join(done.stderr.split())
        if done.returncode not in (0, STORAGE_ERROR) or "Traceback" in told:
            wrong.append(f"{what} in {stage}, exit code {done.returncode}: {told[-300:]}")
        if done.returncode:
            stages[f"{what} in {stage}"] += 1
            print(f"{size} bytes, {what} in {stage}: {told[-200:]}", flush=True)
        return done.returncode

    try:
        while not wrong and attempt("full"):
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            attempt("read-only")
            size += needed // 16
            subprocess.run(["mount", "-o", f"remount,rw,size={size}", str(disk)], check=True)
        wrong += differences(reference, disk / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    return {"refused": dict(stages), "bytes of the run": needed, "wrong": wrong}


def main() -> None:
    """Run a campaign and keep its result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("campaign", choices=("kills", "disk"))
    parser.add_argument("--count", type=int, default=200, help="kills")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.campaign == "kills":
            found = campaign_of_kills(Path(name), options.count, options.seed)
        else:
            found = campaign_on_disk(Path(name))
    write_json(RESULTS / f"campaign_{options.campaign}.json", found)
    print(found)
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()
