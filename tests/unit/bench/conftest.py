import pytest
from tests.helpers.grids import Here, toy_grid

from mcpmix.bench.driver import claimed, run_grid
from mcpmix.bench.grid import expand


@pytest.fixture(scope="session")
def finished(make_config, tmp_path_factory):
    """A grid with all its cells, shared by the tests that only look at it: its plan and its outcome."""
    place = tmp_path_factory.mktemp("bench")
    plan = expand(toy_grid(make_config, place), place / "toy")
    with claimed(plan):
        outcome = run_grid(plan, Here())
    assert outcome.failures == {}
    return plan, outcome
