"""Processes that share a training: who is expected, who is there, and what they do with gradients."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from mcpmix.core import processes
from mcpmix.core.device import Runtime
from mcpmix.core.errors import ConfigError
from mcpmix.core.processes import Processes, connect, join, leader_first


def test_alone_without_a_launcher(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join(1) == connect() == Processes(rank=0, count=1)
    with leader_first() as alone:
        assert alone.leads


def test_a_launcher_that_starts_one_process_is_noticed(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(
        ConfigError, match=r"processes is 2, but 1 process was started.*--nproc-per-node 2 -m"
    ):
        join(2)


def test_more_processes_than_configured_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match=r"4 processes were started.*Set finetune.processes=4"):
        join(1)
    with pytest.raises(ConfigError, match=r"finetune.processes is 3, but 4 processes were started"):
        join(3)


def test_alone_nothing_is_changed():
    network = nn.Linear(2, 2)
    network(torch.ones(1, 2)).sum().backward()
    before = [parameter.grad.clone() for parameter in network.parameters()]
    alone = Processes()
    alone.average_gradients(network.parameters())
    alone.copy_from_leader(network)
    alone.wait()
    assert alone.mean(3.5) == 3.5
    assert all(torch.equal(p.grad, g) for p, g in zip(network.parameters(), before, strict=True))


@pytest.mark.parametrize("bucket", [1, 5, 100])
def test_gradients_are_averaged_in_buckets_of_any_size(monkeypatch, bucket):
    sent = []

    def doubled(tensor):  # as if another process had three times the gradient
        sent.append(tensor.numel())
        tensor *= 4

    monkeypatch.setattr(processes, "_BUCKET", bucket)
    monkeypatch.setattr(processes.dist, "all_reduce", doubled)
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.full((2, 2), 1.0), torch.arange(3.0)
    Processes(0, 2).average_gradients(parameters)

    assert torch.equal(parameters[0].grad, torch.full((2, 2), 2.0))
    assert torch.equal(parameters[1].grad, 2 * torch.arange(3.0))
    assert parameters[2].grad is None
    assert sent == ([7] if bucket == 100 else [4, 3])


def test_threads_are_shared_on_a_cpu(monkeypatch):
    runtime = Runtime(torch.device("cpu"), torch.float32, "test")
    torch.set_num_threads(4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert Processes(1, 2).place(runtime) == runtime
    assert torch.get_num_threads() == 2
    assert Processes().place(runtime) == runtime
    assert torch.get_num_threads() == 2


CHILD = """
import sys, time
from mcpmix.core.processes import end_with_launcher
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
