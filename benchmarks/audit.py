"""Time and memory of the whole audit, features included, on a data set of the catalogue.

python benchmarks/audit.py isic-2017 path/to/ISIC2017
"""

import resource
import sys
import time
from pathlib import Path

import torch

from mcpmix.config_data import SplitConfig
from mcpmix.data.audit import Audit, inspect_all
from mcpmix.data.dataset import load_collection, make_split
from mcpmix.preflight import embedded_phi
from mcpmix.report.data_pages import audit_lines, audit_page


def main(name: str, root: Path, method: str = "official") -> None:
    """Audit a data set and say what it took.

    Args:
        name: of the catalogue.
        root: where it is.
        method: of the split.
    """
    torch.set_num_threads(1)
    wall, used = time.perf_counter(), time.process_time()
    collection = load_collection(name, root=root)
    facts = inspect_all(collection.samples, phi=embedded_phi())
    split = make_split(collection, SplitConfig(method=method), 0)
    audit = Audit(facts, {sample: part for part, ids in split.parts().items() for sample in ids})
    lines, page = list(audit_lines(audit)), audit_page(audit, name)
    wall, used = time.perf_counter() - wall, time.process_time() - used
    print("\n".join(lines))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{len(facts)} images: {used:.1f} s of one core ({wall:.1f} s by the clock), {memory:.0f} MB at most"
    )
    print(f"page of {len(page) / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
