import pytest

from mcpmix.bench.grid import (
    FIGURES,
    TABLES,
    Grid,
    Selection,
    expand,
    grid_names,
    label_name,
    layered,
    load_grid,
)
from mcpmix.bench.state import Cell
from mcpmix.core.errors import ConfigError


def test_a_file_with_relative_paths_and_overrides(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "base: {preset: tiny, data: {source: kvasir-seg, root: here}}\n"
        "transfer: {other: {data: {source: cvc-clinicdb, root: there}}}\n"
        "arms: [full-sup]\nseeds: [0, 1]\ntables: [ablation]\n"
    )
    made = load_grid(str(file), ["seeds=[3]", "train.epochs=2", "datasets.b.seed=4"])
    assert (made.name, made.seeds, made.tables[0].kind) == ("mine", (3,), "ablation")
    assert made.base["data"]["root"] == str(tmp_path / "here")
    assert made.base["train"] == {"epochs": 2}
    assert made.transfer["other"]["data"]["root"] == str(tmp_path / "there")
    assert made.datasets == {"b": {"seed": 4}}


def test_wrong_files_and_names(tmp_path):
    with pytest.raises(ConfigError, match=r"No grid papr-tiny: did you mean paper-tiny\?"):
        load_grid("papr-tiny")
    with pytest.raises(ConfigError, match=r"No configuration at .*none\.yaml"):
        load_grid(str(tmp_path / "none.yaml"))
    (tmp_path / "bad.yaml").write_text(
        "bas: {}\narms: [full-sup]\ntables: [mixin, {kind: mixing, tile: x}]\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_grid(str(tmp_path / "bad.yaml"), ["seeds"])
    text = str(caught.value)
    assert "unknown key bas: did you mean base?" in text
    assert "tables.0.kind" in text
    assert "'mixin'" in text
    assert "unknown key tables.1.tile: did you mean title?" in text
    assert "override 'seeds': expected key=value" in text
    assert "seeds: missing" in text


@pytest.mark.parametrize("name", grid_names())
def test_every_shipped_grid_can_be_expanded(tmp_path, name):
    loaded = load_grid(name)
    roots = [f"datasets.{key}.data.root=x" for key, tree in loaded.datasets.items() if "preset" in tree]
    roots += [f"transfer.{key}.data.root=x" for key, tree in loaded.transfer.items() if "preset" in tree]
    if loaded.base["preset"] == "small":
        roots += ["preset=kvasir-seg"]
    if loaded.base["preset"] != "tiny" or ("data" in loaded.base and "source" in loaded.base["data"]):
        roots += ["data.root=x"]
    plan = expand(load_grid(name, roots), tmp_path)
    assert plan.cells
    assert plan.grid.tables
    for table in plan.grid.tables:
        assert table.kind == "pairs" or plan.selected(table)


def test_the_tiny_paper_has_every_table_and_figure():
    tiny = load_grid("paper-tiny")
    assert {table.kind for table in tiny.tables} == set(TABLES)
    assert {figure.kind for figure in tiny.figures} == set(FIGURES)
    assert tiny.base["preset"] == "tiny"  # offline, on a CPU


BASE = {"preset": "tiny"}


def grid(**changes):
    return Grid.model_validate({"name": "trial", "base": BASE, "arms": ["full-sup"], "seeds": [0], **changes})


def problems(tmp_path, **changes):
    with pytest.raises(ConfigError) as caught:
        expand(grid(**changes), tmp_path)
    return str(caught.value)


def test_cells_are_all_combinations_and_groups_are_what_they_share(tmp_path):
    plan = expand(
        grid(
            datasets={"a": {}, "b": {"seed": 7}},
            labels=[12, "all"],
            generators={"g": {}, "h": {"finetune": {"steps": 7}}},
            arms=["full-sup", "mcpmix"],
            seeds=[0, 1],
        ),
        tmp_path,
    )
    assert len(plan.groups) == 2 * 2 * 2
    assert len(plan.cells) == 2 * 2 * 2 * (1 + 2)  # without pairs the generator makes no difference
    cell = Cell("b", "12", "h", "segmenter", "mcpmix", 1)
    task = plan.cells[cell]
    assert task.group == "b/12/h"
    assert (task.config.seed, task.config.finetune.steps) == (7, 7)
    assert plan.groups["b/12/h"].config.data.phantom.train_patients == 2  # of six frames each
    assert plan.groups["b/12/h"].config.folder == tmp_path / "inputs/b/12/h"
    assert plan.groups["a/all/g"].config.train.arms == ("full-sup", "mcpmix")
    assert plan.groups["a/all/h"].config.train.arms == ("mcpmix",)
    real = [cell for cell in plan.cells if cell.method == "full-sup"]
    assert {(cell.generator, plan.cells[cell].group) for cell in real if cell.dataset == "a"} == {
        ("real", "a/12/g"),
        ("real", "a/all/g"),
    }
    assert plan.home(cell).stage("segmenter") == tmp_path / "cells/b/12/h/segmenter/segmenter/mcpmix/seed-1"


def test_blocks_make_a_union_in_which_no_cell_is_twice(tmp_path):
    blocks = [{"seeds": [0]}, {"arms": ["cutmix"]}]
    plan = expand(grid(arms=["full-sup", "cutmix"], seeds=[0, 1], cells=blocks), tmp_path)
    assert [(cell.method, cell.seed) for cell in plan.cells] == [
        ("full-sup", 0),
        ("cutmix", 0),
        ("cutmix", 1),
    ]
    assert [cell.seed for cell in plan.selected(Selection(arms=("cutmix",)))] == [0, 1]


def test_no_inputs_are_made_for_a_generator_that_no_cell_of_a_block_reads(tmp_path):
    blocks = [{"datasets": ["a"]}, {"datasets": ["b"], "arms": ["full-sup"]}]
    made = grid(
        datasets={"a": {}, "b": {}}, generators={"g": {}, "h": {}}, arms=["full-sup", "mcpmix"], cells=blocks
    )
    plan = expand(made, tmp_path)
    assert list(plan.groups) == ["a/all/g", "a/all/h", "b/all/g"]
    assert plan.groups["b/all/g"].config.train.arms == ("full-sup",)


def test_a_method_is_an_arm_with_settings_of_its_own(tmp_path):
    weak = {"arm": "mcpmix", "label": "weak", "settings": {"rla": {"s_max": 0.2}}}
    made = grid(methods={"weak": weak}, arms=["mcpmix", "weak"])
    plan = expand(made, tmp_path)
    shares = {cell.method: (task.arm, task.config.rla.s_max) for cell, task in plan.cells.items()}
    assert shares == {"mcpmix": ("mcpmix", 0.7), "weak": ("mcpmix", 0.2)}
    assert (made.label_of("weak"), made.label_of("mcpmix")) == ("weak", "+ MCPMix")


def test_labels_of_real_images_are_a_number_or_a_share(tmp_path):
    base = {"preset": "tiny", "data": {"source": "kvasir-seg", "root": "x"}}
    plan = expand(grid(base=base, labels=[44, 0.05]), tmp_path)
    assert plan.groups["data/44/generator"].config.data.labelled == 44
    assert plan.groups["data/44/generator"].share is None
    assert plan.groups["data/5pc/generator"].share == 0.05
    assert label_name(0.025) == "2.5pc"


def test_presets_of_all_layers_are_kept():
    layers = [{"preset": "tiny", "seed": 1}, {"preset": "isic-2017"}, {"seed": 2}]
    assert layered(layers) == {"preset": ["tiny", "isic-2017"], "seed": 2}
    assert layered([{"seed": 1}]) == {"seed": 1}


def test_all_problems_at_once(tmp_path):
    text = problems(
        tmp_path,
        arms=["full-su", "mcpmix", "mcpmix"],
        seeds=[0, 0],
        cells=[{"segmenters": ["segformr"]}],
        segmenters={"segformer": {"data": {}}},
        tables=["mixing", "mixing", {"kind": "ablation", "part": "knwn"}],
    )
    assert "grid trial: 7 problem(s)" in text
    assert "arms: unknown arm 'full-su'; did you mean full-sup?" in text
    assert "arms: ['full-su', 'mcpmix', 'mcpmix'] names one twice" in text
    assert "seeds: [0, 0] names one twice" in text
    assert "cells.0.segmenters: unknown segmenter 'segformr'; did you mean segformer?" in text
    assert "segmenters.segformer: expected settings of segmenter, train, rla, got data" in text
    assert "tables.2.part: unknown part 'knwn'; did you mean known?" in text
    assert "tables: two are called mixing" in text


def test_combinations_that_cannot_be_trained(tmp_path):
    text = problems(tmp_path, arms=["mcpmix", "pseudo-label"], generators={"none": None}, labels=["all", 5])
    assert "arm mcpmix trains on counterparts, and the generator none makes none" in text
    assert "arm pseudo-label trains on unlabelled images, and the data set data has none" in text
    assert "labels 5: a phantom labels whole patients of 6 frames, so expected a multiple of 6, got 5" in text
    assert "3 problem(s)" in text


def test_settings_that_are_wrong_are_told_once(tmp_path):
    text = problems(tmp_path, base={"preset": "tiny", "trai": {}}, arms=["full-sup", "cutmix"], seeds=[0, 1])
    assert text.count("unknown key trai: did you mean train?") == 1


@pytest.mark.parametrize("empty", [{"seeds": []}, {"arms": []}, {"cells": []}])
def test_a_grid_without_cells(tmp_path, empty):
    assert "no cell: each of datasets" in problems(tmp_path, **empty)
