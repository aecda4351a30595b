"""Two processes under torchrun, on the CPU, over the loopback: the weights of one with the doubled batch."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mcpmix.config_file import to_yaml
from mcpmix.core.training import restore
from mcpmix.run import run

RATE = 1e-3


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(*arguments, processes=2):
    """Start mcpmix in several processes; what the launcher itself does, without its name lookups."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    place = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [*command, *place, "-m", "mcpmix", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def torchrun(*arguments):
    """Run it to its end: return code and errors."""
    process = launch(*arguments)
    errors = process.communicate()[1]
    return process.returncode, errors


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def kill_when(condition, process, seconds=120):
    """SIGKILL for the launcher and all its processes as soon as `condition` holds."""
    deadline = time.monotonic() + seconds
    workers = []
    try:
        while not condition():
            assert process.poll() is None, process.stderr.read()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        workers = children(process)
    finally:
        process.kill()
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        process.communicate()
    return workers


def weights(generator):
    return {file.name: load_file(file) for file in (generator / "controlnet").glob("*.safetensors")}


def share_apart(one, other):
    """Share of weights further apart than a hundredth of what Adam moves them in a step.

    Not their largest distance: where a gradient is zero up to rounding, Adam takes a step in a direction that
    rounding decides. In double precision all weights agree (tests/unit/generator/test_finetune_trainer.py).
    """
    distances = [
        (one[name][layer] - value).abs().flatten() for name in other for layer, value in other[name].items()
    ]
    return (torch.cat(distances) > RATE / 100).double().mean().item()


SETTINGS = (
    "finetune.steps=4",  # of two images; there are four
    "finetune.save_every=1",
    "finetune.unlock_decoder=true",
    f"finetune.learning_rate={RATE}",
    f"finetune.decoder_learning_rate={RATE}",
    "finetune.validation.every=2",
    "finetune.validation.images=1",
)


@pytest.fixture(scope="module")
def pair(make_config, tmp_path_factory):
    """Writes the configuration of two processes with one image each; returns it and the file."""

    def write(name):
        folder = tmp_path_factory.mktemp(name)
        config = make_config(folder, *SETTINGS, "finetune.batch_size=1", "finetune.processes=2")
        (folder / "pair.yaml").write_text(to_yaml(config))
        return config.folder / "generator", folder / "pair.yaml"

    return write


@pytest.fixture(scope="module")
def uninterrupted(pair):
    """The generator of two processes that nobody disturbed."""
    generator, file = pair("uninterrupted")
    code, errors = torchrun("finetune", file)
    assert code == 0, errors[-3000:]
    return generator


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one_with_the_doubled_batch(make_config, tmp_path, uninterrupted):
    alone = run(make_config(tmp_path, *SETTINGS, "finetune.batch_size=2"), until="generator").generator

    result, expected = weights(uninterrupted), weights(alone.folder)
    assert len(result) == len(expected) == 2  # ControlNet and decoder
    assert share_apart(result, expected) < 1e-4
    assert not list(uninterrupted.parent.glob("*.partial"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_killed_in_the_middle_of_an_epoch_two_processes_go_on_to_the_same_weights(pair, uninterrupted):
    generator, file = pair("killed")
    checkpoint = generator.with_name("generator.partial") / "checkpoint.safetensors"
    assert len(kill_when(checkpoint.exists, launch("finetune", file))) == 2
    assert 0 < restore({}, checkpoint) < 4
    code, errors = torchrun("finetune", file)
    assert code == 0, errors[-3000:]

    result, expected = weights(generator), weights(uninterrupted)
    assert len(result) == 2
    for name, layers in expected.items():
        assert all(torch.equal(result[name][layer], value) for layer, value in layers.items())
    assert (generator / "log.jsonl").read_text() == (uninterrupted / "log.jsonl").read_text()


@pytest.mark.slow
def test_other_stages_refuse_several_processes(make_config, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(make_config(tmp_path)))
    code, errors = torchrun("synthesize", file)
    assert code != 0
    assert "only `mcpmix finetune` works with several" in " ".join(errors.split())
    assert not (tmp_path / "small").exists()
