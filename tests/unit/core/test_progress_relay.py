"""Processes that do not outlive who started them."""

import os
import subprocess
import sys

import pytest

CHILD = """
import sys, time
from mcpmix.core.progress import end_with_launcher
end_with_launcher()
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
print("not ended", flush=True)
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


@pytest.mark.parametrize(
    ("environment", "seconds", "said"),
    [({"TORCHELASTIC_RUN_ID": "none"}, 120, ""), ({}, 0.6, "not ended\n")],
    ids=["torchrun", "another launcher"],
)
def test_a_process_of_torchrun_ends_with_it_and_others_do_not(environment, seconds, said):
    known = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_RUN_ID"}
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, CHILD, str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env=known | environment,
    ) as launcher:
        assert launcher.stdout.readline() == "ready\n"
        launcher.kill()
        assert launcher.stdout.read() == said  # up to the end of the child, which writes to the same place
