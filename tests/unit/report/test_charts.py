"""Charts: parts of a page that stay within their own names, colours and sizes."""

import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from mcpmix.report.arms import arms_of
from mcpmix.report.charts import (
    curve_chart,
    curves_of,
    gate_section,
    group_chart,
    group_section,
    mean_curve,
    training_section,
)

FULL, RLA = arms_of(["full-sup", "mcpmix-rla"])
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def curves(name="chart", **options):
    seeds = [{1: 0.1, 2: 0.2, 3: 0.4}, {1: 0.1, 2: 0.4, 3: 0.6}]
    return curve_chart(name, [(None, [{1: 0.5, 3: 0.05}]), (FULL, seeds)], "share s", **options)


def groups(names=("p1", "p2"), **options):
    values = {name: {0: 50.0, 1: 60.0} for name in names}
    return group_chart("groups", names, [(FULL, values), (RLA, values)], "DSC", **options)


@pytest.mark.parametrize("svg", [curves(), curves(log=True, mark=2), groups(), groups(zero=True)])
def test_a_chart_is_whole_and_takes_size_and_colour_from_the_page(svg):
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & root.attrib.keys()
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert not list(root.iter(f"{SVG}style"))
    assert not list(root.iter(f"{SVG}metadata"))


def test_ids_carry_the_name_and_references_find_them():
    svg = curves("mine")
    ids = re.findall(r'\bid="([^"]+)"', svg)
    targets = re.findall(r'(?:url\(|href=")#([^")]+)', svg)
    assert all(name.startswith("mine-") for name in ids)
    assert targets
    assert set(targets) <= set(ids)


def test_the_same_chart_twice_is_the_same_text():
    assert curves() == curves()


def test_text_stays_text():
    assert "share s" in texts(curves())
    assert "epoch" in texts(curves())
    assert {"p1", "p2", "DSC"} <= set(texts(groups()))


def test_bold_means_and_dashed_targets_are_drawn_as_such():
    svg = curves()
    assert re.search(r"stroke: #2b8bd0; stroke-width: 1\.9\b", svg)
    assert re.search(r"stroke: #2b8bd0; stroke-opacity: 0\.45; stroke-width: 0\.8\b", svg)
    assert len(re.findall(r'style="[^"]*stroke-dasharray: [^"]*stroke: currentColor', svg)) == 1


def test_a_logarithmic_axis_has_plain_numbers():
    labels = texts(curves(log=True))
    assert {"0.1", "0.2"} <= set(labels)
    assert not any("10" in label and "^" in label for label in labels)


@pytest.mark.parametrize("name", ["<b>&amp;", "a$x^2$b", "患者", "x" * 60])
def test_any_name_of_a_group_can_be_drawn(name):
    found = texts(groups((name, "p2")))
    assert (name if len(name) < 20 else "x" * 17 + "…") in found


def test_many_groups_lose_their_names():
    names = [f"case{k}" for k in range(41)]
    assert not set(texts(groups(names))) & set(names)
    assert set(names[:40]) <= set(texts(groups(names[:40])))


@pytest.mark.parametrize(("second", "dots"), [(2.5, 2), (math.nan, 1)])
def test_undefined_groups_have_no_dot(second, dots):
    svg = group_chart("g", ["a", "b"], [(FULL, {"a": {0: 1.0, 1: 3.0}, "b": {0: second}})], "DSC")
    assert len(re.findall(rf'<use [^>]*style="fill: {FULL.colour}', svg)) == dots
    assert "nan" not in svg.lower()


def test_pyplot_stays_out():
    code = "import sys, mcpmix.report.charts; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_and_undefined_epochs_are_left_out():
    rows = [
        {"epoch": 1, "s": 0.35, "discrepancy": math.nan},
        {"epoch": 2, "discrepancy": 0.5, "validation": {"dsc": 60.0}},
        {"epoch": 3, "s": 0.3, "discrepancy": math.inf, "validation": None},
    ]
    logs = {("mcpmix-rla", 0): rows}
    assert curves_of(logs, "mcpmix-rla", "s") == [{1: 0.35, 3: 0.3}]
    assert curves_of(logs, "mcpmix-rla", "discrepancy") == [{2: 0.5}]
    assert curves_of(logs, "mcpmix-rla", "validation.dsc") == [{2: 60.0}]
    assert curves_of(logs, "mcpmix-rla", "validation.miou") == []


def test_curves_of_an_arm_in_the_order_of_seeds():
    logs = {
        ("mcpmix-rla", 2): [{"epoch": 1, "s": 0.2}],
        ("mcpmix-rla", 1): [{"epoch": 1, "s": 0.1}],
        ("full-sup", 0): [{"epoch": 1, "loss": 1.0}],
        ("mcpmix-rla", 10): [],
    }
    assert curves_of(logs, "mcpmix-rla", "s") == [{1: 0.1}, {1: 0.2}]
    assert curves_of(logs, "full-sup", "s") == []


def test_the_mean_is_over_epochs_that_all_have():
    assert mean_curve([{1: 1.0, 2: 2.0, 3: 3.0}, {2: 4.0, 3: 7.0, 4: 9.0}]) == {2: 3.0, 3: 5.0}
    assert mean_curve([]) == {}


def test_groups_are_in_the_order_of_the_reference_with_undefined_ones_last():
    groups = {
        "full-sup": {"a": {0: 50.0}, "b": {0: 70.0}, "c": {0: math.nan}},
        "mcpmix-rla": {"a": {0: 80.0}, "b": {0: 60.0}, "c": {0: 90.0}},
    }
    values, gains = group_section([FULL, RLA], groups, "full-sup", "patients", unseen=True).charts
    places = [values.svg.index(f">{name}<") for name in "bac"]
    assert places == sorted(places)
    assert "Full-Sup: lowest 50.0, mean 60.0, highest 70.0." in values.alt
    assert "+ MCPMix + RLA: lowest -10.0, mean 10.0, highest 30.0." in gains.alt
    assert "Full-Sup:" not in gains.alt
    assert len(group_section([FULL], groups, None, "patients", unseen=True).charts) == 1


def log(s):
    rows = [
        {"epoch": k + 1, "s": value, "s_prior": 0.7 * value, "loss_real": value} for k, value in enumerate(s)
    ]
    rows[-1]["validation"] = {"dsc": 60.0}
    return rows


def test_gates_tell_where_they_began_and_ended():
    logs = {("mcpmix-rla", 0): log([0.35, 0.2, 0.1]), ("mcpmix-rla", 1): log([0.35, 0.3, 0.2])}
    section = gate_section(RLA, logs, None)
    assert "in the last epoch: share s from 0.35 to 0.15." in section.text
    assert [chart.caption for chart in section.charts] == [
        "Share s of the synthetic image; dashed: its prior."
    ]
    assert "share s goes from 0.35 to 0.15, its prior from 0.245 to 0.105" in section.charts[0].alt
    assert "τ₀" not in section.text
    for run, rows in logs.items():
        rows[-1] |= {"tau0": 0.05 + run[1] / 100, "mu": 1.0}
    assert (
        "The margin starts at τ₀ = 0.05 to 0.06. D above the margin is weighted by μ = 1. "
        in gate_section(RLA, logs, None).text
    )


def test_arms_without_learnable_gates_have_no_such_section():
    logs = {("full-sup", 0): [{"epoch": 1, "loss_real": 1.0, "s": 0.3}]}
    assert gate_section(FULL, logs, None) is None


def test_training_shows_what_was_logged():
    logs = {("full-sup", 0): log([0.5, 0.3]), ("mcpmix-rla", 0): log([0.4, 0.0])}
    section = training_section([FULL, RLA], logs, 1)
    assert len(section.charts) == 2
    assert "Full-Sup goes from 0.5 to 0.3. + MCPMix + RLA goes from 0.4 to 0." in section.charts[0].alt
