"""Figures of cells that were never trained: their labels and numbers, and which images they choose."""

import json
import math
import re

import numpy as np
import pytest
from PIL import Image
from tests.helpers.grids import IMAGES, scored_by_hand

from mcpmix.bench.figures import draw, trend
from mcpmix.bench.gradients import Boundary
from mcpmix.bench.grid import FigureSpec

SKILL = {"full-sup": 50.0, "cutmix": 60.0, "weak": 65.0, "mcpmix-rla": 70.0}
WEAK = {"weak": {"arm": "mcpmix", "label": "weak mixing"}}


def by_skill(cell, image):
    return SKILL[cell.method] + 2 * cell.seed + image


def texts(drawn):
    """All words of a figure, in their order."""
    return [text.strip() for text in re.findall(r"<text[^>]*>([^<]*)</text>", drawn.svg)]


def log(found, rows):
    """Gives every cell the same log of its training."""
    for scored in found.cells.values():
        scored.segmenter.folder.mkdir(parents=True)
        (scored.segmenter / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_the_cost_of_each_method_by_its_name(tmp_path):
    found = scored_by_hand(tmp_path, by_skill, arms=("full-sup", "weak"), methods=WEAK)
    assert draw(FigureSpec(kind="cost"), found) is None  # no step was timed
    for cell in found.plan.cells:
        pace = found.plan.home(cell).stage("pace").with_suffix(".json")
        pace.parent.mkdir(parents=True, exist_ok=True)
        pace.write_text("0.25" if cell.method == "weak" else "0.1")
    drawn = draw(FigureSpec(kind="cost", name="mine"), found)
    assert (drawn.name, drawn.title) == ("mine", "Cost against gain")
    assert drawn.caption.startswith("data/all: seconds of a training step")
    assert {"Full-Sup", "weak mixing", "seconds of a training step", "DSC (%)"} <= set(texts(drawn))
    assert (tmp_path / "figures/mine.png").read_bytes().startswith(b"\x89PNG")


def test_labels_need_two_numbers_of_images(tmp_path):
    assert draw(FigureSpec(kind="labels"), scored_by_hand(tmp_path / "one", by_skill)) is None
    found = scored_by_hand(tmp_path / "two", by_skill, labels=[12, "all"], train=12)
    drawn = draw(FigureSpec(kind="labels"), found)
    assert {"12", "24", "Full-Sup", "CutMix", "labelled images"} <= set(texts(drawn))
    assert drawn.caption.startswith("data, segmenter: DSC on the same test images")


def test_gates_against_priors_and_schedules(tmp_path):
    found = scored_by_hand(tmp_path, by_skill)
    rows = [{"epoch": e, "s": 0.5 / e, "s_prior": 0.4, "rho": 0.2, "rho_prior": 0.3} for e in (1, 2, 3)]
    log(found, rows)
    drawn = draw(FigureSpec(kind="gates"), found)
    labels = {"RLA", "its prior", "stepwise (mean share)", "cosine (mean share)", "share s", "weight ρ"}
    assert labels <= set(texts(drawn))
    assert drawn.caption.startswith("data/all/generator/segmenter; thin lines: single seeds")
    assert draw(FigureSpec(kind="gates", arms=("cutmix",)), found) is None


def test_cases_are_chosen_by_rule(tmp_path):
    def value(cell, image):
        if cell.method == "cutmix" and image == 3:
            return math.nan
        if cell.method == "full-sup" and image == 1:
            return 5.0  # here methods differ most
        return by_skill(cell, image)

    found = scored_by_hand(tmp_path, value)
    mask = np.zeros((16, 16), np.uint8)
    mask[4:9, 4:9] = 255
    for name in IMAGES:
        Image.fromarray(np.full((16, 16, 3), 90, np.uint8)).save(tmp_path / f"{name}.jpg")
        Image.fromarray(mask).save(tmp_path / f"{name}.png")
        for scored in found.cells.values():
            folder = scored.evaluations["test"] / "predictions"
            folder.mkdir(exist_ok=True)
            Image.fromarray(mask).save(folder / f"{name}.png")
    drawn = draw(FigureSpec(kind="cases"), found)
    words = texts(drawn)
    assert [word for word in words if word in ("best", "median", "worst", "largest difference")] == [
        "best",
        "median",
        "worst",
        "largest difference",
    ]
    # The best, median and worst image of ours, then image 1, each with the scores of all methods.
    numbers = [word for word in words if re.fullmatch(r"\d+\.\d|undefined", word)]
    assert numbers[:3] == ["55.0", "65.0", "75.0"]
    assert numbers[-3:] == ["5.0", "61.0", "71.0"]
    assert "seed 0. White: truth" in drawn.caption
    assert "by the DSC of + MCPMix + RLA, and" in drawn.caption


def test_gradients_of_all_arms(tmp_path):
    found = scored_by_hand(tmp_path, by_skill)
    row = Boundary(12.3, 0.1, 0.02, 1.4, 0.2, 3.21, 70.0)
    drawn = draw(FigureSpec(kind="gradients", epochs=7), found, {"full-sup": row, "cutmix": row})
    assert {"Full-Sup", "CutMix", "sign flips between epochs (%)"} <= set(texts(drawn))
    assert "Trainings of 7 epochs" in drawn.caption
    assert draw(FigureSpec(kind="gradients"), found) is None


def test_without_rla_there_is_no_distribution(tmp_path):
    found = scored_by_hand(tmp_path, by_skill, arms=("full-sup", "cutmix"))
    assert draw(FigureSpec(kind="distribution"), found) is None
    assert draw(FigureSpec(kind="cost", arms=("mixup",)), found) is None


def test_the_trend_of_distances():
    assert trend([1, 2, 3], [5.0, 3.0, 1.0]) == pytest.approx(-1)
    assert trend([1, 2, 3], [1.0, 3.0, 5.0]) == pytest.approx(1)
    assert math.isnan(trend([1], [5.0]))
    assert math.isnan(trend([1, 2], [5.0, 5.0]))
