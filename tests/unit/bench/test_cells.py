"""What is read from the folder of a cell."""

import pytest

from mcpmix.bench.cells import Made, read_pace
from mcpmix.bench.state import Home
from mcpmix.config_file import resolve_config
from mcpmix.core.errors import StorageError


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, "cutmix/seed-0")


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
