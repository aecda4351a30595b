import re
from importlib import resources

import numpy as np
import pytest
import yaml
from tests.helpers.finished_run import FinishedRun

from mcpmix.report.checklist import answer, checklist_names, fill_checklist
from mcpmix.report.report import Results

ITEMS = yaml.safe_load((resources.files("mcpmix.report") / "checklists.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    run = FinishedRun(tmp_path_factory.mktemp("runs"), ["train.seeds=[0, 1]"])
    return Results(run.config, run.dataset, run.pairs, run.segmenters, run.evaluations)


def test_the_lists_are_complete():
    assert checklist_names() == ["claim", "tripod"]
    assert [entry["item"] for entry in ITEMS["claim"]["items"]] == [str(number) for number in range(1, 45)]
    numbers = [int(re.match(r"\d+", entry["item"])[0]) for entry in ITEMS["tripod"]["items"]]
    assert sorted(set(numbers)) == list(range(1, 28))
    assert numbers == sorted(numbers)


def test_every_answer_belongs_to_an_item(results):
    asked = {entry["from"] for chosen in ITEMS.values() for entry in chosen["items"] if "from" in entry}
    assert asked == answer(results).keys()


@pytest.mark.parametrize("name", ["claim", "tripod"])
def test_every_item_is_answered_or_asked(results, name):
    text = fill_checklist(name, results)
    table, by_hand = text.split("## Only you can answer")
    rows = re.findall(r"^\| (\w+) \| .+? \| (.+) \|$", table, re.MULTILINE)
    asked = re.findall(r"^- \[ \] (\w+): \S", by_hand, re.MULTILINE)

    entries = ITEMS[name]["items"]
    assert [item for item, _ in rows[1:]] == [entry["item"] for entry in entries if "from" in entry]
    assert asked == [entry["item"] for entry in entries if "from" not in entry or "ask" in entry]
    assert all(len(answer) > 5 for _, answer in rows)


def test_answers_are_those_of_the_run(results):
    text = fill_checklist("claim", results)

    assert "train: 4 images of 2 patients; validation: 2 images of 1 patients; test: 6 images" in text
    assert "seeds 0, 1" in text
    assert "No leak was found" in text
    dsc = [scores for (arm, _), scores in results.scores.items() if arm == "mcpmix"]
    mean = np.mean([list(scores.values()) for scores in dsc])
    found = re.search(r"\+ MCPMix (\d+\.\d) \((\d+\.\d) to (\d+\.\d)\)", text)
    assert float(found[1]) == pytest.approx(mean, abs=0.06)
    assert float(found[2]) <= float(found[1]) <= float(found[3])
