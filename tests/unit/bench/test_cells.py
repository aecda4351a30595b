"""What is read from the folder of a cell."""

import pytest

from mcpmix.bench.cells import Made, epochs_done, read_pace
from mcpmix.bench.plan import Home
from mcpmix.config_file import resolve_config
from mcpmix.core.errors import StorageError


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, "cutmix/seed-0")


def test_epochs_are_the_lines_of_the_log_of_an_unfinished_training(home):
    assert epochs_done(home) == 0
    log = home.folder / "segmenter/cutmix/seed-0.partial/log.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text('{"epoch": 1}\n{"epoch": 2}\n{"epo')  # the third is being written
    assert epochs_done(home) == 2


def test_a_pace_that_was_not_measured_is_none_and_a_damaged_one_is_named(home):
    assert read_pace(home) is None
    path = home.folder / "pace/cutmix/seed-0.json"
    path.parent.mkdir(parents=True)
    path.write_text("0.25")
    assert read_pace(home) == 0.25
    path.write_text("{}")
    with pytest.raises(StorageError, match=r"seed-0\.json is damaged .* Delete it\."):
        read_pace(home)


def test_a_cell_works_on_the_base_of_its_group(tmp_path):
    config = resolve_config({"preset": "tiny"})
    assert Made({}, config.generator.base).place(config) is config
    assert Made({}, str(tmp_path)).place(config).generator.base == str(tmp_path)
