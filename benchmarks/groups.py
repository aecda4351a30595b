"""How well guessed groups agree with the 29 known sequences of CVC-ClinicDB, and what leaks through a split.

python benchmarks/groups.py path/to/CVC-ClinicDB

Writes results/groups.json and the table of docs/data.md. `named` are the frames under their own names, in the
order of the videos; `shuffled` are the same under random names and without times, where no order helps;
`before` links near-duplicates alone, as the audit finds them.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from _markers import fill
from mcpmix.core.seeds import numpy_rng
from mcpmix.data.audit import Facts, inspect_all
from mcpmix.data.dataset import load_collection
from mcpmix.data.groups import guess_groups
from mcpmix.data.sample import Sample
from mcpmix.data.splits import group_split

HERE = Path(__file__).parent
SEEDS = range(20)
VALIDATION, TEST = 0.15, 0.2  # as by default
NEAR = (1, 5)  # frames of the same sequence on either side that count as neighbours


def pairwise(guess: Mapping[str, str], truth: Mapping[str, str]) -> tuple[float, float]:
    """Precision and recall of the pairs of images that are in one group."""
    ids = sorted(truth)
    guessed, known = (np.unique([of[name] for name in ids], return_inverse=True)[1] for of in (guess, truth))
    upper = np.triu_indices(len(ids), 1)
    together = (guessed[:, None] == guessed)[upper]
    same = (known[:, None] == known)[upper]
    both = int((together & same).sum())
    return both / max(1, int(together.sum())), both / int(same.sum())


def leaks(facts: list[Facts], guess: Mapping[str, str], truth: Mapping[str, str]) -> dict[str, list[float]]:
    """Share of test frames with a neighbour, or any frame of their sequence, in training, for each seed."""
    order = sorted((item.sample.id for item in facts), key=int)
    place = {name: number for number, name in enumerate(order)}
    samples = [replace(item.sample, group=guess[item.sample.id]) for item in facts]
    found: dict[str, list[float]] = {f"within {near}": [] for near in NEAR} | {"same sequence": []}
    for seed in SEEDS:
        split = group_split(samples, VALIDATION, TEST, seed)
        trained = [(place[name], truth[name]) for name in split.train]
        for kind, reach in zip(found, (*NEAR, len(order)), strict=True):
            met = [
                any(group == truth[name] and abs(place[name] - other) <= reach for other, group in trained)
                for name in split.test
            ]
            found[kind].append(100 * float(np.mean(met)))
    return found


def main(root: Path) -> None:
    """Measure and write."""
    collection = load_collection("cvc-clinicdb", root=root)
    truth = {sample.id: sample.group for sample in collection.samples}
    alone = [replace(sample, group=sample.id) for sample in collection.samples]
    facts = list(inspect_all(alone))
    names = numpy_rng("shuffled names").permutation(len(facts))
    real = {f"{number:04d}": item.sample.id for item, number in zip(facts, names.tolist(), strict=True)}
    by_id = {item.sample.id: item for item in facts}
    shuffled = [  # sorted by the new names, and without files whose times could help
        replace(by_id[old], sample=Sample(new, Path(new), Path(new), new, "shuffled"))
        for new, old in sorted(real.items())
    ]
    before = [replace(item, colours=None) for item in facts]  # without colours there are no runs
    results = {}
    for kind, given in (("named", facts), ("shuffled", shuffled), ("before", before)):
        guess = guess_groups(given)
        names_of = real if kind == "shuffled" else {}
        group_of = {names_of.get(name, name): group for name, group in guess.group_of.items()}
        precision, recall = pairwise(group_of, truth)
        results[kind] = {
            "groups": len(set(group_of.values())),
            "order": guess.order,
            "neighbours_alike": guess.close,
            "precision": precision,
            "recall": recall,
            "leaks_percent": leaks(facts, group_of, truth),
        }
    results["truth"] = {"groups": len(set(truth.values())), "images": len(truth)}
    (HERE / "results" / "groups.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    heading = "frames | groups | precision | recall | neighbour in training | within 5 frames | same sequence"
    rows = [f"| {heading} |", "|---|---:|---:|---:|---:|---:|---:|"]
    words = {
        "named": "in the order of their names",
        "shuffled": "under shuffled names",
        "before": "near-duplicates alone",
    }
    for kind, text in words.items():
        row = results[kind]
        shares = " | ".join(f"{np.mean(values):.1f} %" for values in row["leaks_percent"].values())
        rows.append(f"| {text} | {row['groups']} | {row['precision']:.3f} | {row['recall']:.3f} | {shares} |")
    page = HERE.parent / "docs" / "data.md"
    fill(page, "groups-table", "\n".join(rows))
    print("\n".join(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
