"""The banks of `benchmarks/degraded_pairs.py`, and its table by hand."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from mcpmix.data.index import DatasetIndex, cache_of, load_arrays
from mcpmix.data.sample import read_image
from mcpmix.generator.ledger import inspect_bank, read_rows
from mcpmix.metrics import score
from mcpmix.run import run


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture(scope="module")
def bank(make_config, tmp_path_factory):
    """A small bank, and the training images that it belongs to."""
    config = make_config(tmp_path_factory.mktemp("run"))
    made = run(config, until="pairs")
    records = DatasetIndex.read(made.dataset).part("train")
    return made.pairs, load_arrays(records, config.data.size, cache_of(made.dataset.folder))


@pytest.fixture
def degraded(bank, tmp_path):
    """Makes a bank: `degraded(kind, percent)`."""
    degrade = importlib.import_module("_degrade").degrade

    def make(kind, percent):
        return degrade(*bank, kind, percent, sigma=2.0, seed=0, out=tmp_path / f"{kind}-{percent}")

    return make


def pictures(artifact):
    return {row["file"]: read_image(artifact / row["file"]) for row in read_rows(artifact.folder)}


def changed(one, other):
    assert one.keys() == other.keys()
    return {name for name in one if not np.array_equal(one[name], other[name])}


@pytest.mark.parametrize("kind", ["wrong", "blurred"])
def test_a_share_of_the_images_is_spoilt_and_the_ledger_says_which(bank, degraded, kind):
    clean, quarter, half, whole = pictures(bank[0]), *(degraded(kind, share) for share in (25, 50, 100))
    assert len(clean) == 8
    spoilt = [changed(clean, pictures(artifact)) for artifact in (quarter, half, whole)]
    assert [len(files) for files in spoilt] == [2, 4, 8]
    assert spoilt[0] < spoilt[1] < spoilt[2]
    for artifact, files in zip((quarter, half, whole), spoilt, strict=True):
        assert "8 admitted of 8 images tried; ledger and images are whole" in inspect_bank(artifact.folder)
        rows = read_rows(artifact.folder)
        assert {row["file"] for row in rows if row.get("degraded")} == files
        assert artifact.manifest["counts"]["spoilt"] == len(files)
    assert len({artifact.digest for artifact in (bank[0], quarter, half, whole)}) == 4
    assert changed(clean, pictures(bank[0])) == set()
    assert degraded(kind, 25).manifest == quarter.manifest  # reused


def test_a_wrong_lesion_is_that_of_a_counterpart_of_another_mask(bank, degraded):
    clean, whole = pictures(bank[0]), degraded("wrong", 100)
    mask_of = dict(zip(bank[1].ids, bank[1].masks.astype(bool), strict=True))
    parent_of = {row["file"]: row["parent"] for row in read_rows(bank[0].folder)}
    found = pictures(whole)
    overlaps = []
    for row in read_rows(whole.folder):
        kind, source = row["degraded"]
        assert kind == "wrong"
        assert parent_of[source] != row["parent"]
        assert np.array_equal(found[row["file"]], clean[source])
        overlaps.append(score(mask_of[row["parent"]], mask_of[parent_of[source]])["dsc"] / 100)
    assert whole.manifest["counts"]["overlap"] == pytest.approx(np.mean(overlaps))
    assert np.mean(overlaps) < 0.5


def test_a_blurred_counterpart_keeps_its_light_and_loses_its_detail(bank, degraded):
    clean, blurred = pictures(bank[0]), pictures(degraded("blurred", 100))
    for name, before in clean.items():
        after = blurred[name].astype(float)
        assert after.mean() == pytest.approx(before.mean(), abs=2)
        assert (
            np.abs(np.diff(after, axis=1)).mean() < 0.5 * np.abs(np.diff(before.astype(float), axis=1)).mean()
        )


def test_the_table_compares_seed_by_seed():
    page = importlib.import_module("degraded_pairs")
    test = "test"

    def cell(dsc, **gates):
        return {"dsc": {test: dsc}, "gates": gates}

    cells = {
        "wrong-100": {
            "mcpmix": {"0": cell(20.0), "1": cell(30.0)},
            "mcpmix-rla": {"0": cell(26.0, s=0.2, rho=0.1), "1": cell(32.0, s=0.4, rho=0.2)},
        },
        "clean": {"full-sup": {"0": cell(30.0), "1": cell(29.0)}, "mcpmix": {"0": cell(40.0)}},
    }
    head, _, clean, wrong = (
        [part.strip() for part in line.strip("|").split("|")] for line in page.table(cells, test).splitlines()
    )
    assert head == [
        "counterparts", "Full-Sup", "+ MCPMix", "+ MCPMix + RLA",
        "RLA − fixed", "seeds ahead", "mean s", "mean ρ",
    ]  # fmt: skip
    assert clean == ["all as they are", "29.50 ± 0.71", "40.00", "–", "–", "0 of 0", "–", "–"]
    assert wrong == [
        "100 % with a wrong lesion", "29.50 ± 0.71", "25.00 ± 7.07", "29.00 ± 4.24", "+4.00 ± 2.83", "2 of 2",
        "0.30", "0.15",
    ]  # fmt: skip
    assert page.verdict(cells, test) == (
        "100 % with a wrong lesion: RLA minus fixed mixing is +4.00 ± 2.83 points (2 of 2 seeds ahead), "
        "and RLA minus real images alone −0.50 ± 4.95 (1 of 2 ahead)."
    )
