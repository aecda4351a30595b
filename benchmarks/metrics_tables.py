"""Put the results of the metrics benchmark into `docs/metrics.md`, or check that they are there.

    python benchmarks/metrics_tables.py [--check]

A table stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "metrics.md"
RESULTS = ROOT / "benchmarks" / "results" / "metrics.json"
DISAGREEMENTS = {
    "hd95": ("HD95 in pixels", ["mcpmix", "MONAI", "medpy", "surface-distance"]),
    "assd": ("ASSD in pixels", ["mcpmix", "MONAI", "medpy", "surface-distance"]),
    "bf1_2": ("Boundary F1 or surface Dice at 2 pixels, in percent", ["mcpmix", "MONAI", "surface-distance"]),
    "dsc": ("Dice in percent", ["mcpmix", "MONAI", "medpy", "surface-distance", "torchmetrics"]),
    "precision": ("Precision in percent", ["mcpmix", "MONAI", "MONAI on booleans", "medpy"]),
    "hd": ("Largest distance in pixels", ["mcpmix", "torchmetrics, Hausdorff"]),
}


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(answer: Any, key: str) -> str:  # noqa: ANN401
    """One answer of one library as text: a number, NaN, infinity, or the exception it raised."""
    if isinstance(answer, str):
        return answer
    value = answer.get(key, "")
    return value if isinstance(value, str) else f"{value:.2f}"


def disagreement_tables(result: dict[str, Any]) -> str:
    """A table per metric: examples down, libraries across."""
    parts = []
    for key, (title, libraries) in DISAGREEMENTS.items():
        rows = [
            [example, *(number(answers.get(library, ""), key) for library in libraries)]
            for example, answers in result["disagreements"].items()
        ]
        parts.append(f"**{title}**\n\n" + markdown(["pair", *libraries], rows))
    return "\n\n".join(parts)


def mean_table(result: dict[str, Any]) -> str:
    """Means over the pairs of the benchmark: metrics down, libraries across."""
    names = [name for name in result["means"] if name not in ("MONAI, HD95 only", "scipy, whole suite")]
    keys = ["hd95", "assd", "bf1_2", "bf1_5", "bf1_10", "dsc", "miou", "precision", "recall", "biou"]
    rows = [[key, *(number(result["means"][name], key) for name in names)] for key in keys]
    return markdown(["metric", *(name.split(",")[0] for name in names)], rows)


def speed_table(result: dict[str, Any]) -> str:
    """Time per pair and ratio to ours."""
    rows = [
        [
            row["method"],
            f"{row['ms_per_pair']:.2f}",
            f"{row['images_per_second']:.0f}",
            f"{row['times_ours']:.1f} [{row['low']:.1f} to {row['high']:.1f}]",
        ]
        for row in result["speed"]
    ]
    return markdown(["method", "ms per pair", "images per second", "times ours [95 %]"], rows)


def cost_table(result: dict[str, Any]) -> str:
    """Files, first call and memory."""
    files, start, large = result["files"], result["cold_start"], result["large_masks"]
    rows = [
        [f"{files['pairs']} pairs of PNG files, 512 x 512, one thread", f"{files['total_s']:.2f} s"],
        ["of which decoding the files", f"{files['decoding_s']:.2f} s"],
        ["of which metrics", f"{files['metrics_s']:.2f} s"],
        ["first call after import, nothing compiled yet", _wall_and_cpu(start, "first_ever")],
        ["first call after import, compiled code on disk", _wall_and_cpu(start, "cached")],
        ["4096 x 4096, two lesions", f"{1e3 * large['lesion_s']:.0f} ms"],
        ["4096 x 4096, noise against its inverse", f"{1e3 * large['noise_s']:.0f} ms"],
        ["peak memory of that process", f"{large['peak_mb']:.0f} MB"],
    ]
    return markdown(["what", "measured"], rows)


def _wall_and_cpu(start: dict[str, float], kind: str) -> str:
    return f"{start[f'{kind}_wall_s']:.2f} s (processor time {start[f'{kind}_cpu_s']:.2f} s)"


def setting(result: dict[str, Any]) -> str:
    """How the numbers were made."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"`{result['command'].strip()}` on {result['date']}, {result['machine']}, load average "
        f"{result['load_average']:.1f}; {versions}. Largest difference from scipy over all metrics of all "
        f"pairs: {result['exactness_against_scipy']:.1g}."
    )


def filled(text: str, result: dict[str, Any]) -> str:
    """The document with all its tables."""
    tables = {
        "speed": speed_table,
        "cost": cost_table,
        "setting": setting,
        "means": mean_table,
        "disagreements": disagreement_tables,
    }
    for name, make in tables.items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise SystemExit(f"{DOCS.name} has no place for the table {name!r}.")
        text = before + begin + make(result) + end + after
    return text


def main() -> None:
    """Fill the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a table is out of date")
    options = parser.parse_args()
    before = DOCS.read_text(encoding="utf-8")
    after = filled(before, json.loads(RESULTS.read_text(encoding="utf-8")))
    if not options.check:
        DOCS.write_text(after, encoding="utf-8")
    elif after != before:
        sys.exit("docs/metrics.md is out of date: run python benchmarks/metrics_tables.py")


if __name__ == "__main__":
    main()
