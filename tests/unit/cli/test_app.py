import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mcpmix as package

HEAVY = ("torch", "numpy", "PIL", "pydantic", "rich", "transformers", "diffusers", "scipy", "matplotlib")


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_lists_the_commands_and_imports_nothing_heavy():
    code = f"""
import sys
from mcpmix.cli.app import main
try:
    main(["--help"])
except SystemExit as ended:
    assert ended.code == 0, ended.code
print("heavy:", [name for name in {HEAVY} if name in sys.modules])
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "init", "check", "run", "depth", "adapt", "finetune", "synthesize", "train",
                    "evaluate", "report", "predict", "export-pairs", "bench", "verdict", "studio", "pack",
                    "models", "data"):  # fmt: skip
        assert f"\n  {command} " in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]  # no summary is cut
    assert "heavy: []" in done.stdout


def test_importing_the_package_imports_nothing_heavy():
    done = run_python(
        f"import sys, mcpmix; print([name for name in {HEAVY} if name in sys.modules], mcpmix.__version__)"
    )
    assert done.stdout.split() == ["[]", package.__version__]


def test_public_names_are_those_of_their_modules():
    from mcpmix.config_file import load_config
    from mcpmix.mixing.mcpmix import mix
    from mcpmix.mixing.mmd import mmd
    from mcpmix.mixing.rla import RLA
    from mcpmix.segmenter.predict import load_segmenter

    assert package.mix is mix
    assert package.RLA is RLA
    assert package.mmd is mmd
    assert package.load_config is load_config
    assert package.load_segmenter is load_segmenter
    assert package.metrics.__name__ == "mcpmix.metrics"
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'mixx'"):
        _ = package.mixx


def test_module_runs_and_shows_the_version():
    done = subprocess.run(
        [sys.executable, "-m", "mcpmix", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"mcpmix {package.__version__}\n")


def test_unknown_command_names_the_nearest(mcpmix):
    done = mcpmix("trian", "x.yaml")
    assert done.code == 2
    assert "trian" in done.err
    assert "train" in done.err


def test_libraries_are_silent_and_offline_unless_the_user_says_otherwise(mcpmix, monkeypatch):
    monkeypatch.delenv("TRANSFORMERS_VERBOSITY", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    mcpmix("--version")
    assert os.environ["TRANSFORMERS_VERBOSITY"] == "error"
    assert os.environ["HF_HUB_OFFLINE"] == "0"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    mcpmix("--version")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def fail_with(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("mcpmix.init.write_phantom_sheet", fail)


def test_interruption_says_how_to_go_on(mcpmix, monkeypatch, tmp_path):
    fail_with(monkeypatch, KeyboardInterrupt())
    done = mcpmix("data", "phantom", "--sheet", tmp_path / "sheet.png")
    assert done.code == 130
    assert done.err.strip() == "stopped; run the same command again to resume"


SLOW = """
import signal, sys, time
import mcpmix.init
from mcpmix.cli.app import main

def work(*_, **__):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("cleaning", flush=True)
        time.sleep(float(sys.argv[1]))
        print("cleaned", flush=True)

mcpmix.init.write_phantom_sheet = work
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would ignore it
main(["data", "phantom", "--sheet", "x.png"])
"""


@pytest.mark.parametrize(
    ("signals", "code", "said"),
    [
        ([signal.SIGINT], 130, "stopped; run the same command again to resume"),
        ([signal.SIGTERM], 143, "stopped; run the same command again to resume"),
        ([signal.SIGINT, signal.SIGINT], 130, "stopped at once"),
        ([signal.SIGTERM, signal.SIGINT], 130, "stopped at once"),
    ],
)
def test_signals_end_a_command_in_order_and_a_second_one_at_once(signals, code, said):
    patience = "30" if len(signals) > 1 else "0"
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, patience], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for number, line in zip(signals, ("ready\n", "cleaning\n"), strict=False):
            assert process.stdout.readline() == line
            process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert err.strip() == said
    assert ("cleaned" in out) == (len(signals) == 1)


def test_unexpected_errors_show_where_they_come_from(mcpmix, monkeypatch, tmp_path):
    fail_with(monkeypatch, ZeroDivisionError("by nought"))
    done = mcpmix("data", "phantom", "--sheet", tmp_path / "sheet.png")
    assert done.code == 70
    assert "Traceback" in done.err
    assert "ZeroDivisionError: by nought" in done.err
    assert done.err.strip().endswith("please report it with the lines above.")


def test_debug_shows_where_a_users_error_comes_from_wherever_it_stands(mcpmix, tmp_path):
    missing = tmp_path / "none.yaml"
    assert "Traceback" not in mcpmix("run", missing).err
    for arguments in (("--debug", "run", missing), ("run", missing, "--debug")):
        done = mcpmix(*arguments)
        assert done.code == 2
        assert "Traceback" in done.err
        assert done.err.strip().endswith(f"Error: No configuration at {missing}. `mcpmix init` writes one.")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_met_anywhere_gives_its_message(mcpmix, monkeypatch, tmp_path, number):
    fail_with(monkeypatch, OSError(number, "No space left on device", "/somewhere/file"))
    done = mcpmix("data", "phantom", "--sheet", tmp_path / "sheet.png")
    assert done.code == 5
    assert done.err.startswith("Error: The disk that holds /somewhere/file is full.")
    assert "Traceback" not in done.err


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
def test_a_disk_that_really_is_full(mcpmix):
    done = mcpmix("data", "phantom", "--sheet", "/dev/full", "--patients", 1, "--frames", 1, "--size", 32)
    assert done.code == 5
    assert "is full" in done.err
    assert Path("/dev/full").is_char_device()  # and not a picture in its place


def test_a_closed_pipe_is_no_mistake(tmp_path):
    command = f"{sys.executable} -m mcpmix models list | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "report it" not in done.stderr


def test_threads_wait_passively_unless_the_user_has_chosen(monkeypatch, mcpmix):
    for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    assert mcpmix("--version").code == 0
    assert (os.environ["OMP_WAIT_POLICY"], os.environ["KMP_BLOCKTIME"]) == ("PASSIVE", "0")
    monkeypatch.delenv("KMP_BLOCKTIME")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert mcpmix("--version").code == 0
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "KMP_BLOCKTIME" not in os.environ


def test_the_command_line_does_not_load_torch_before_it_has_set_them():
    code = "import sys, mcpmix.cli.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
