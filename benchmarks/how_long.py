"""How long the preset `tiny` takes for 100 and for 400 images, as `mcpmix check` estimates it.

    python benchmarks/how_long.py

Times a few steps of each stage on this machine, in seconds, and writes results/how_long.json and the table of
docs/first-hour.md. Run it on a quiet machine. Images are split as by default.
"""

import json
import os
import platform
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from _markers import fill
from mcpmix.cli.app import quieten
from mcpmix.config_file import resolve_config

HERE = Path(__file__).parent
IMAGES = (100, 400)
SEEDS = {"three seeds": "train.seeds=[0, 1, 2]", "one seed": "train.seeds=[0]"}


def measure(images: int, seeds: str, output: Path) -> dict[str, float]:
    """Seconds of each stage of a run that has not begun."""
    from mcpmix.core.device import setup
    from mcpmix.timing import seconds_left

    config = resolve_config({"preset": "tiny", "output": str(output)}, [seeds])
    held = {"validation": config.data.split.validation, "test": config.data.split.test}
    counts = {part: round(share * images) for part, share in held.items()}
    runtime = setup(config.runtime.device, config.runtime.precision, 0, config.runtime.deterministic)
    return seconds_left(config, {"train": images - sum(counts.values()), **counts}, runtime)


def minutes(seconds: float) -> str:
    """Rounded: an estimate is not more exact."""
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def main() -> None:
    """Measure and write."""
    quieten()  # as the command does, before torch is imported: threads that spin would be timed with it
    with TemporaryDirectory() as folder:
        found = {
            f"{images} images, {name}": measure(images, seeds, Path(folder))
            for images in IMAGES
            for name, seeds in SEEDS.items()
        }
    facts = {"cores": os.cpu_count(), "machine": platform.machine(), "date": time.strftime("%Y-%m-%d")}
    results = {**facts, "seconds": found}
    (HERE / "results" / "how_long.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    stages = list(next(iter(found.values())))
    rows = [f"| preset `tiny` | in all | {' | '.join(stages)} |", "|---|---:|" + "---:|" * len(stages)]
    for name, seconds in found.items():
        cells = " | ".join(minutes(seconds[stage]) for stage in stages)
        rows.append(f"| {name} | {minutes(sum(seconds.values()))} | {cells} |")
    note = f"Estimated by `python benchmarks/how_long.py` on {facts['cores']} cores, {facts['date']}."
    table = "\n".join([*rows, "", note])
    fill(HERE.parent / "docs" / "first-hour.md", "how-long", table)
    print(table)


if __name__ == "__main__":
    main()
