"""A short run of the fuzzers; `make fuzz` is the long one."""

import logging

import pytest
from tools.fuzz.__main__ import fuzz, peak_gigabytes, time_limit
from tools.fuzz.targets import TARGETS


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_are_read_or_refused_with_a_message():
    outcome = fuzz(12 * len(TARGETS), 7, list(TARGETS))
    assert outcome.failures == []
    assert set(outcome.refused) == set(TARGETS)
    assert outcome.read.total() > 0  # not everything is refused
    assert peak_gigabytes() < 4  # of the whole test session


def test_a_traceback_a_hang_and_the_input_are_kept(monkeypatch, tmp_path):
    def broken(_, folder):
        (folder / "input").write_text("x")
        return lambda: 1 / 0

    def hanging(*_):
        def read():
            with time_limit(1):
                while True:
                    pass

        return read

    monkeypatch.setitem(TARGETS, "broken", broken)
    monkeypatch.setitem(TARGETS, "hanging", hanging)
    outcome = fuzz(2, 0, ["broken", "hanging"], tmp_path)
    assert "broken 0: ZeroDivisionError" in outcome.failures[0]
    assert "hanging 1: TimeoutError" in outcome.failures[1]
    assert (tmp_path / "broken-0-0" / "input").read_text() == "x"


def test_the_same_seed_gives_the_same_inputs(tmp_path):
    from tools.fuzz.damage import Rng

    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        TARGETS["table"](Rng("3"), tmp_path / name)
        made.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
