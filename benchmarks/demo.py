"""The demo's figures for the README: runs `mcpmix demo` (or reads a finished run) and writes what came out.

    python benchmarks/demo.py [--run runs/demo] [--others runs/demo-4 runs/demo-5]

Other runs are the demo on other patients (`mcpmix demo seed=4 name=demo-4`): whether a difference holds there
is the better half of the result. Stores benchmarks/results/demo.json and replaces the table between the
markers of README.md.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from _markers import fill
from mcpmix.core.training import JsonLines
from mcpmix.report.arms import label_of
from mcpmix.report.tables import REGION, spread_of, spread_text, to_markdown

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "demo.json"


def gates(run: Path) -> list[dict[str, float]]:
    """s, rho and D of each RLA training, as means over the first and the last tenth of its epochs."""
    rows = []
    for log in sorted(run.glob("segmenter/mcpmix-rla/seed-*/log.jsonl")):
        epochs = JsonLines(log).rows()
        tenth = max(1, len(epochs) // 10)
        parts = {"first": epochs[:tenth], "last": epochs[-tenth:]}
        rows.append(
            {
                f"{name}_{when}": fmean(epoch[name] for epoch in part if name in epoch)
                for name in ("s", "rho", "discrepancy")
                for when, part in parts.items()
            }
        )
    return rows


def replication(run: Path) -> dict[str, Any]:
    """The seed of a run's patients, and the DSC of each arm and training on unseen and on known ones."""
    table = json.loads((run / "report" / "table.json").read_text())
    return {
        "seed": json.loads((run / "dataset" / "manifest.json").read_text())["key"]["seed"],
        **{
            name: {row["arm"]: list(row["metrics"]["dsc"]["values"].values()) for row in part["rows"]}
            for name, part in (("dsc", table), ("dsc_known", table["known"]))
        },
    }


def collect(run: Path, others: list[Path], seconds: float | None) -> dict[str, Any]:
    """Everything the README says about a run."""
    return {
        "patients": [replication(path) for path in (run, *others)],
        "command": "mcpmix demo",
        "seconds": seconds and round(seconds),
        "python": platform.python_version(),
        "versions": json.loads((run / "report" / "manifest.json").read_text())["versions"],
        "dataset": json.loads((run / "dataset" / "manifest.json").read_text())["counts"],
        "gates": gates(run),
        "table": json.loads((run / "report" / "table.json").read_text()),
    }


def replication_table(patients: list[dict[str, Any]], part: str) -> str:
    """DSC of every arm on every set of patients, and the difference that is claimed."""
    arms = list(patients[0][part])
    head = ["patients", *(label_of(arm) for arm in arms), "RLA − Full-Sup", "seeds ahead"]
    lines = [head, ["---"] * len(head)]
    for world in patients:
        dsc = world[part]
        gains = [a - b for a, b in zip(dsc["mcpmix-rla"], dsc["full-sup"], strict=True)]
        ahead = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
        cells = [spread_text(spread_of(dsc[arm])) for arm in arms]
        lines.append([f"seed={world['seed']}", *cells, spread_text(spread_of(gains), signed=True), ahead])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(result: dict[str, Any]) -> str:
    """The README's section."""
    data, table = result["dataset"], result["table"]
    took = f" It took {result['seconds'] / 60:.0f} minutes on two cores." if result["seconds"] else ""
    rows = result["gates"]
    means = {key: fmean(row[key] for row in rows) for key in rows[0]}
    return (
        f"`mcpmix demo`: {data['train']} annotated frames; mean ± standard deviation over seeds, the same "
        f"number of optimiser steps in every arm.{took} On {data['test']} frames of unseen patients:\n\n"
        f"{to_markdown(table, REGION)}\n"
        f"On {data['known']} new frames of the annotated patients:\n\n"
        f"{to_markdown(table['known'], REGION)}\n"
        f"In training the share s went from {means['s_first']:.2f} to {means['s_last']:.2f}, the loss "
        f"weight rho from {means['rho_first']:.2f} to {means['rho_last']:.2f}, and the discrepancy D between "
        f"mixed and real images from {means['discrepancy_first']:.3f} to {means['discrepancy_last']:.3f} "
        "(means over seeds, first and last tenth of the epochs).\n\n"
        "DSC on the unseen patients of this and of further runs of the demo:\n\n"
        f"{replication_table(result['patients'], 'dsc')}\n\n"
        "DSC on new frames of the annotated patients of the same runs:\n\n"
        f"{replication_table(result['patients'], 'dsc_known')}\n\nWritten by `python benchmarks/demo.py`."
    )


def main() -> None:
    """Run, collect, publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a finished run; without it, the demo runs first")
    parser.add_argument("--others", type=Path, nargs="*", default=[], help="finished demos on other patients")
    options = parser.parse_args()
    run: Path | None = options.run
    seconds = None
    if run is None:
        run = ROOT / "runs" / "demo"
        start = time.monotonic()
        subprocess.run([sys.executable, "-m", "mcpmix", "demo", "--out", str(run.parent)], check=True)
        seconds = time.monotonic() - start
    result = collect(run, options.others, seconds)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    fill(ROOT / "README.md", "demo-table", markdown(result))
    print(markdown(result))


if __name__ == "__main__":
    main()
