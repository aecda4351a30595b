"""Charts: parts of a page that stay within their own names, colours and sizes."""

import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from mcpmix.report.charts import Dots, Line, curve_chart, group_chart

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return ["".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def curves(name="chart", **options):
    lines = [
        Line((1, 2, 3), (0.1, 0.2, 0.4), "#2b8bd0"),
        Line((1, 2, 3), (0.1, 0.3, 0.5), "#2b8bd0", bold=True, marker="o"),
        Line((1, 3), (0.5, 0.05), None, dashed=True),
    ]
    return curve_chart(name, lines, "share s", **options)


def groups(names=("p1", "p2"), **options):
    values = [(50.0, 55.0, 60.0)] * len(names)
    return group_chart(
        "groups", names, [Dots(values, "#2b8bd0", "o"), Dots(values, "#d9860a", "s")], "DSC", **options
    )


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
    values = [(1.0, 2.0, 3.0), (second, second, second)]
    svg = group_chart("g", ["a", "b"], [Dots(values, "#2b8bd0", "o")], "DSC")
    assert len(re.findall(r'<use [^>]*style="fill: #2b8bd0', svg)) == dots
    assert "nan" not in svg.lower()


def test_pyplot_stays_out():
    code = "import sys, mcpmix.report.charts; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
