import pytest

from mcpmix.bench.grid import FIGURES, TABLES, grid_names, load_grid
from mcpmix.bench.plan import expand
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
