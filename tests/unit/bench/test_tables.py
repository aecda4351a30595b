import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from tests.helpers.grids import IMAGES, scored_by_hand

from mcpmix.bench import tables
from mcpmix.bench.grid import TableSpec
from mcpmix.bench.tables import (
    KINDS,
    best_rival,
    interval_text,
    p_text,
    plain,
    published,
    published_table,
    to_rows,
    to_sheets,
    what_differs,
)
from mcpmix.config_file import resolve_config
from mcpmix.core.errors import DataError
from mcpmix.metrics.statistics import holm


def build(found, **spec):
    return tables.build_table(found, TableSpec(**({"kind": "mixing"} | spec)))


SKILL = {"full-sup": 50.0, "cutmix": 60.0, "mcpmix-rla": 70.0}


def by_skill(cell, image):
    return SKILL[cell.method] + 2 * cell.seed + image


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return scored_by_hand(tmp_path_factory.mktemp("tables"), by_skill)


def test_means_ranks_and_differences_by_hand(world):
    (block,) = build(world).blocks
    assert (block.images, block.groups) == (6, 3)
    lines = {line.method: line for line in block.lines}
    assert list(lines) == ["full-sup", "cutmix", "mcpmix-rla"]  # in the order of the paper's table
    spread = lines["cutmix"].spreads["dsc"]
    assert spread["mean"] == pytest.approx(60 + 1 + 2.5)
    assert spread["sd"] == pytest.approx(math.sqrt(2))
    assert [line.ranks["dsc"] for line in block.lines] == [0, 2, 1]
    rivals = lines["mcpmix-rla"].rivals
    assert set(rivals) == {"Full-Sup", "CutMix"}
    found = rivals["CutMix"]["dsc"].difference
    assert (found.mean, found.low, found.high, found.group_low) == (10, 10, 10, 10)
    assert found.p == pytest.approx(2 / 2**6)  # all six images differ to one side
    assert [rivals[name]["dsc"].p_holm for name in ("Full-Sup", "CutMix")] == holm([found.p, found.p])
    name, rival = best_rival(block, lines["mcpmix-rla"], build(world).columns[-1])
    assert (name, rival.difference.mean) == ("CutMix", 10)


def test_of_distances_the_smallest_is_best(world):
    table = build(world, kind="boundary")
    assert [c["key"] for c in table.columns][:3] == ["hd95", "assd", "bp_2"]
    assert len(table.columns) == 12
    (block,) = table.blocks
    assert [line.ranks["hd95"] for line in block.lines] == [1, 2, 0]
    assert best_rival(block, block.lines[-1], table.columns[0])[0] == "Full-Sup"


def test_a_network_that_finds_nothing_is_told_and_is_never_the_best(tmp_path):
    """On images with small lesions, marking nothing gives the best pixel accuracy."""

    def value(cell, image):
        return 0.0 if cell.method == "cutmix" else SKILL[cell.method]

    table = build(scored_by_hand(tmp_path, value), kind="boundary")
    (block,) = table.blocks
    assert [line.ranks["hd95"] for line in block.lines] == [1, 0, 2]
    (note,) = [note for sheet in to_sheets(table) for note in sheet.notes if "Learnt nothing" in note]
    assert "CutMix" in note
    assert "Full-Sup" not in note


def test_only_seeds_and_images_that_both_have_are_compared(tmp_path):
    def value(cell, image):
        if cell.method == "cutmix" and image == 0:
            return math.nan
        return SKILL[cell.method] + 100 * cell.seed

    blocks = [{"seeds": [0]}, {"arms": ["mcpmix-rla"]}]
    (block,) = build(scored_by_hand(tmp_path, value, cells=blocks)).blocks
    found = block.lines[-1].rivals["CutMix"]["dsc"].difference
    assert block.lines[-1].seeds == [0, 1]
    assert (found.n, found.mean) == (5, 10)  # not 60: the rival has no seed 1


def test_networks_are_compared_with_themselves(tmp_path):
    def value(cell, image):
        return SKILL[cell.method] + (20 if cell.segmenter == "unet" else 0) + image

    networks = {
        "segformer": {},
        "unet": {"segmenter": {"name": "unet", "variant": "resnet18", "weights": None}},
    }
    world = scored_by_hand(tmp_path, value, segmenters=networks, arms=("full-sup", "mcpmix-rla"))
    (block,) = build(world, kind="backbones", published="npc-les").blocks
    assert [line.label for line in block.lines][:2] == ["segformer: Full-Sup", "segformer: + MCPMix + RLA"]
    assert [set(line.rivals) for line in block.lines if line.rivals] == [
        {"segformer: Full-Sup"},
        {"unet: Full-Sup"},
    ]
    unet = next(line for line in block.lines if line.label == "unet: Full-Sup")
    assert unet.published["dsc"] == [68.35, 1.25]
    (first,) = build(world, kind="mixing").blocks  # other tables: the first network alone
    assert {line.segmenter for line in first.lines} == {"segformer"}


def test_published_figures_stand_beside_ours_as_theirs(world):
    table = build(world, kind="ablation", published="kvasir-seg")
    (block,) = table.blocks
    assert block.lines[0].published["dsc"] == [85.55, 0.43]
    (note,) = block.notes
    assert "As published for Kvasir-SEG, not measured by us" in note
    assert "data: phantom, theirs kvasir-seg" in note
    assert "pixels a side: 128, theirs 512" in note
    assert "seeds: 2, theirs 4" in note
    sheet = to_sheets(table)[0]
    texts = [[item.text for item in row] for row in sheet.rows]
    assert texts[2] == ["Full-Sup, published†", "84.25 ± 0.39", "93.21 ± 0.51", "84.44 ± 0.51",
                        "89.39 ± 0.52", "85.55 ± 0.43"]  # fmt: skip
    assert {item.mark for item in sheet.rows[2]} == {"theirs"}
    assert build(world).blocks[0].notes == []  # the paper has no phantom


def test_as_rows_and_as_json(world):
    table = build(world)
    rows = {(row["method"], row["metric"]): row for row in to_rows(table)}
    assert len(rows) == 3 * 5
    assert rows["full-sup", "dsc"]["ours_minus"] == 20
    assert rows["mcpmix-rla", "dsc"]["ours_minus"] is None
    assert rows["cutmix", "miou"]["rank"] == 2
    content = json.loads(json.dumps(plain(asdict(table)), allow_nan=False))
    assert content["blocks"][0]["lines"][2]["rivals"]["CutMix"]["dsc"]["difference"]["mean"] == 10


def test_a_table_without_finished_cells_says_so(world):
    empty = build(replace(world, cells={}))
    assert to_sheets(empty)[0].notes == ["No cell of this table is finished."]
    assert to_rows(empty) == []
    assert build(world, kind="generative", arms=("append",)).blocks == []


def test_a_transfer_set_that_failed_leaves_its_tables_empty(world):
    assert build(world, part="elsewhere").blocks == []


def test_scores_of_other_images_are_refused(tmp_path):
    world = scored_by_hand(tmp_path, by_skill, seeds=(0,))
    path = next(iter(world.cells.values())).evaluations["test"] / "scores.csv"
    path.write_text(path.read_text().replace("i0,", "other,"))
    with pytest.raises(DataError, match="expected those of the 6 test images; 2 differ, i0 among them"):
        build(world)


def test_a_thousand_finished_cells(tmp_path):
    methods = {f"m{number:03d}": {"arm": "cutmix"} for number in range(248)}
    arms = ("full-sup", *methods, "mcpmix-rla")
    draws = np.random.default_rng(0).normal(0, 3, (len(arms), 4, len(IMAGES)))

    def value(cell, image):
        return 60 + draws[arms.index(cell.method), cell.seed, image]

    world = scored_by_hand(tmp_path, value, arms=arms, seeds=(0, 1, 2, 3), methods=methods)
    assert len(world.cells) == 1000
    (block,) = build(world, arms=arms).blocks
    assert len(block.lines) == 250
    means = {line.method: line.spreads["dsc"]["mean"] for line in block.lines}
    assert means["m100"] == pytest.approx(60 + draws[101].mean())
    assert len(block.lines[-1].rivals) == 249
    corrected = [rival["dsc"].p_holm for rival in block.lines[-1].rivals.values()]
    assert min(corrected) == 1.0  # of so many comparisons of chance none survives


def test_numbers_as_texts():
    assert interval_text(-1.234, 2) == "−1.23 to 2.00"
    assert interval_text(math.nan, 2) == "–"
    assert [p_text(value) for value in (0.0001, 0.04, math.nan)] == ["< 0.001", "0.040", "–"]


# --- the paper's figures, and the note that stands below them ----------------------------------------------


def test_the_published_tables_are_complete():
    found_tables = published()["tables"]
    assert {
        name: {key: len(rows) for key, rows in found.items()} for name, found in found_tables.items()
    } == {
        "mixing": {"kvasir-seg": 10, "piccolo": 10, "cvc-clinicdb": 10, "npc-les": 10, "isic-2017": 10},
        "boundary": {"kvasir-seg": 10, "piccolo": 10, "cvc-clinicdb": 10, "npc-les": 10},
        "generative": {"npc-les": 4},
        "ablation": {"kvasir-seg": 3, "piccolo": 3, "cvc-clinicdb": 3, "npc-les": 3},
        "backbones": {"npc-les": 8},
        "schedules": {"npc-les": 3},
    }
    for kind, found in found_tables.items():
        columns = 12 if kind == "boundary" else 5
        for rows in found.values():
            assert all(len(row) == columns for row in rows.values())
            assert {name.split("/")[-1] for name in rows} <= set(KINDS[kind].arms)
    # The same experiment has the same figures wherever the paper shows it.
    for name in ("kvasir-seg", "piccolo", "cvc-clinicdb", "npc-les"):
        assert found_tables["mixing"][name]["mcpmix-rla"] == found_tables["ablation"][name]["mcpmix-rla"]


def test_a_table_that_the_paper_does_not_have_is_empty():
    assert published_table("mixing", "my-own") == {}
    assert published_table("pairs", "kvasir-seg") == {}


def test_the_note_names_only_what_differs():
    paper = published()
    config = resolve_config({"preset": "paper", "data": {"source": "kvasir-seg", "root": "somewhere"}})
    note = what_differs(config, "44", "kvasir-seg", [paper["seeds"], 2])
    assert f"labelled images: 44, theirs all; seeds: 2 to {paper['seeds']}, theirs {paper['seeds']}" in note
    assert "pixels a side" not in note
    same = what_differs(config, "all", "kvasir-seg", [paper["seeds"]])
    assert "nothing that the paper names" in same
