import math

import numpy as np
import pytest
from tests.helpers.grids import Here

from mcpmix.bench.driver import claimed, run_grid
from mcpmix.bench.verdict import Dose, make_plan, sentence, write_verdict
from mcpmix.core.errors import ConfigError
from mcpmix.metrics.statistics import paired_differences
from mcpmix.run import run


def dose(gains, *, p_holm=None, ahead=2, label="fixed mixing up to 0.35"):
    (found,) = paired_differences(np.array(gains, dtype=float)[:, None])
    p = found.p if p_holm is None else p_holm
    return Dose("m", label, 0.2, 60.0, found, p, found.low, found.high, ahead, 2)


def test_a_benefit_is_called_one_only_if_everything_speaks_for_it():
    text = sentence([dose([4, 5, 6, 5], p_holm=0.01), dose([0, 1, -1, 0], label="other")], "test", "4 groups")
    assert text.startswith("Synthetic images help on unseen groups: the best is fixed mixing up to 0.35, 5.0")
    assert "ahead of real images alone (95 % interval over 4 groups" in text
    assert "after correction for 2 comparisons, ahead with 2 of 2 seeds" in text
    for doubt in (dose([4, 5, 6, 5], p_holm=0.2), dose([4, 5, 6, 5], p_holm=0.01, ahead=1)):
        assert sentence([doubt], "test", "4 groups").startswith(
            "No benefit shown on unseen groups: the best is"
        )
    level = dose([-9, 9, 10, -8], p_holm=0.01)
    assert sentence([level], "known", "x").startswith("No benefit shown on new images of known groups")


def test_harm_is_called_by_its_name():
    worse, worst = dose([-4, -5, -6], p_holm=0.01, ahead=0), dose([-8, -9, -7], p_holm=0.01, ahead=0)
    text = sentence([worst, worse], "test", "3 groups")
    assert text.startswith("Synthetic images harm on unseen groups: even the best is")
    assert "5.0 points of DSC behind" in text
    mixed = sentence([worst, dose([1, -1, 0.5], label="other")], "test", "3 groups")
    assert mixed.startswith("No benefit shown")
    assert mixed.endswith("fixed mixing up to 0.35 is clearly behind.")


def test_nothing_is_said_about_undefined_scores():
    assert sentence([dose([math.nan])], "test", "1 images").startswith("No answer on unseen groups")


def test_from_a_configuration_to_an_answer_with_the_run_s_own_stages(make_config, tmp_path):
    config = make_config(
        tmp_path, "train.seeds=[0, 1]", "train.arms=[full-sup]", "data.phantom.test_patients=2"
    )
    trained = run(config, until="segmenter")
    plan = make_plan(config, config.folder / "verdict")
    assert [cell.method for cell in plan.cells if cell.seed == 0] == [
        "full-sup",
        "mcpmix-0.175",
        "mcpmix-0.35",
        "mcpmix-0.7",
        "mcpmix-rla",
    ]
    with claimed(plan):
        found = run_grid(plan, Here())
    assert found.failures == {}
    alone = {cell.seed: item for cell, item in found.cells.items() if cell.method == "full-sup"}
    for seed in (0, 1):  # not trained again
        assert alone[seed].segmenter.folder == trained.segmenters["full-sup", seed].folder
    verdicts, page = write_verdict(found)
    assert [verdict.part for verdict in verdicts] == ["test", "known"]
    for verdict in verdicts:
        assert [item.method for item in verdict.doses] == list(plan.grid.arms[1:])
        assert verdict.sentence in page.read_text(encoding="utf-8")
        shares = [item.share for item in verdict.doses[:3]]
        assert shares == sorted(shares)
        assert 0 < shares[0] < 0.175
        assert (plan.out / f"dose-response-{verdict.part}.png").exists()
    markdown = (plan.out / "verdict.md").read_text(encoding="utf-8")
    assert verdicts[0].sentence in markdown
    assert "| fixed mixing up to 0.35 |" in markdown


def test_without_seeds_there_is_no_answer(make_config, tmp_path):
    with pytest.raises(ConfigError, match=r"train\.seeds: empty"):
        make_plan(make_config(tmp_path, "train.seeds=[]"), tmp_path / "verdict")
