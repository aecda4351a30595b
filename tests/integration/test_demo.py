"""The demo with the embedded weights, through the command line, as a new user runs it (but shorter)."""

import json
import re
import subprocess
import sys

import pytest

SHORT = [
    "finetune.steps=3",
    "train.epochs=2",
    "train.validate_every=1",
    "synthesis.steps=2",
    "train.seeds=[0,1]",
]


@pytest.mark.slow
def test_demo_ends_with_a_table_and_a_page_that_needs_no_network(tmp_path):
    command = [sys.executable, "-m", "mcpmix", "demo", "--fast", "--out", str(tmp_path), *SHORT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("Full-Sup", "MCPMix", "RLA", "DSC", "report.html"):
        assert name in done.stdout
    report = tmp_path / "demo-fast" / "report"
    table = json.loads((report / "table.json").read_text())
    assert table
    page = (report / "report.html").read_text()
    assert page.count("data:image/") > 10
    loaded = re.findall(r"""(?:\ssrc|\shref)=["'](?!data:|#)([^"']+)""", page)
    assert not [address for address in loaded if "//" in address]
    assert "@import" not in page


def test_demo_patients_are_not_those_of_pretraining():
    from mcpmix.data.phantom_set import PRETRAINING_SEED, world_seed

    assert all(world_seed(seed) != PRETRAINING_SEED for seed in range(1000))
