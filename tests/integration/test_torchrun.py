"""Two processes under torchrun, on the CPU, over the loopback: the weights of one with the doubled batch."""

import os
import socket
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from mcpmix.core.config import to_yaml
from mcpmix.pipeline import Pipeline

RATE = 1e-3


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def torchrun(*arguments, processes=2):
    """Run mcpmix in several processes; what the launcher itself does, without its name lookups."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    place = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, *place, "-m", "mcpmix", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def weights(artifact_folder):
    folder = artifact_folder / "controlnet"
    return {file.name: load_file(file) for file in folder.glob("*.safetensors")}


def share_apart(one, other):
    """Share of weights further apart than a hundredth of what Adam moves them in a step.

    Not their largest distance: where a gradient is zero up to rounding, Adam takes a step in a direction that
    rounding decides. In double precision all weights agree (tests/unit/stages/test_finetune_steps.py).
    """
    distances = [
        (one[name][layer] - value).abs().flatten() for name in other for layer, value in other[name].items()
    ]
    return (torch.cat(distances) > RATE / 100).double().mean().item()


@pytest.mark.slow
def test_two_processes_give_the_weights_of_one_with_the_doubled_batch(make_config, tmp_path):
    common = (
        "finetune.steps=2",
        "finetune.unlock_decoder=true",
        f"finetune.learning_rate={RATE}",
        f"finetune.decoder_learning_rate={RATE}",
        "finetune.validation.every=2",
        "finetune.validation.images=1",
    )
    pair = make_config(tmp_path / "pair", *common, "finetune.batch_size=2", "finetune.processes=2")
    file = tmp_path / "pair.yaml"
    file.write_text(to_yaml(pair))
    done = torchrun("finetune", file)
    assert done.returncode == 0, done.stderr[-3000:]
    whole = Pipeline(make_config(tmp_path / "whole", *common, "finetune.batch_size=4")).generator

    result, expected = weights(pair.folder / "generator"), weights(whole.folder)
    assert len(result) == len(expected) == 2  # ControlNet and decoder
    assert share_apart(result, expected) < 1e-4
    assert not list(pair.folder.glob("*.partial"))


@pytest.mark.slow
def test_other_stages_refuse_several_processes(make_config, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(make_config(tmp_path)))
    done = torchrun("synthesize", file)
    assert done.returncode != 0
    assert "only `mcpmix finetune` works with several" in " ".join(done.stderr.split())
    assert not (tmp_path / "small").exists()
