import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mcpmix.cli.app import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def mcpmix(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command in this process; what it sets in the environment, and for signals, is taken back."""
    saved = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    yield run
    os.environ.clear()
    os.environ.update(saved)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def phantom_folder(tmp_path, mcpmix):
    """Eight frames of four patients, 32 pixels."""
    folder = tmp_path / "set"
    made = mcpmix("data", "phantom", "--out", folder, "--patients", 4, "--frames", 2, "--size", 32)
    assert made.code == 0, made.err
    return folder


@pytest.fixture
def config(tmp_path, phantom_folder, mcpmix):
    """A configuration for the phantom folder, of one arm, which needs no weights."""
    made = mcpmix(
        "init", tmp_path / "study", "--images", phantom_folder / "images", "--masks",
        phantom_folder / "masks", "--groups", phantom_folder / "groups.csv", "--preset", "tiny",
    )  # fmt: skip
    assert made.code == 0, made.err
    file = tmp_path / "study" / "mcpmix.yaml"
    text = file.read_text().replace("[full-sup, mcpmix, mcpmix-rla]", "[full-sup]")
    file.write_text(text.replace("size: 128", "size: 32"))
    return file
