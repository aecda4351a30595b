"""Choice of device, precision and threads."""

import os

import pytest
import torch

from mcpmix.core.device import Runtime, setup, thread_count, worker_count
from mcpmix.core.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def torch_switches(monkeypatch):
    """Put torch's global switches back after each test."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    deterministic = torch.get_deterministic_debug_mode()
    yield
    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = benchmark
    torch.set_deterministic_debug_mode(deterministic)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.fixture
def gpu(monkeypatch):
    """Pretend that there is a GPU, without or with bfloat16."""

    def pretend(bfloat16):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bfloat16)

    return pretend


def no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_without_an_accelerator_is_float32_on_the_cpu_and_says_so(monkeypatch):
    no_accelerator(monkeypatch)
    runtime = setup("auto", "auto", threads=1, deterministic=True)

    assert (runtime.device, runtime.precision) == (CPU, torch.float32)
    assert runtime.reason == "cpu, float32 (no fast bfloat16 here)"


@pytest.mark.parametrize(("bfloat16", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_on_a_gpu_takes_bfloat16_where_the_gpu_has_it(gpu, bfloat16, expected):
    gpu(bfloat16)
    runtime = setup("auto", "auto", threads=1, deterministic=True)

    assert runtime.device.type == "cuda"
    assert runtime.precision == expected


def test_auto_takes_mps_where_there_is_no_cuda(monkeypatch):
    no_accelerator(monkeypatch)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)

    assert setup("auto", "auto", threads=1, deterministic=True).device.type == "mps"


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_configured_precision_is_taken_as_it_is(precision):
    runtime = setup("cpu", precision, threads=1, deterministic=True)

    assert runtime.precision == getattr(torch, precision)
    assert runtime.reason == f"cpu, {precision} as configured"


@pytest.mark.parametrize("device", ["banana", "cuda:99"])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(
        ConfigError, match=rf"runtime\.device: '{device}' cannot be used here .*Try auto or cpu\."
    ):
        setup(device, "auto", threads=1, deterministic=True)


@pytest.mark.parametrize("deterministic", [True, False])
def test_determinism_sets_every_switch(deterministic):
    setup("cpu", "float32", threads=1, deterministic=deterministic)

    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert torch.is_deterministic_algorithms_warn_only_enabled() is deterministic
    assert torch.backends.cudnn.benchmark is not deterministic
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is deterministic


def test_autocast_computes_in_the_chosen_precision():
    a = torch.ones(2, 2)
    with Runtime(CPU, torch.bfloat16, "test").autocast():
        assert (a @ a).dtype == torch.bfloat16
    with Runtime(CPU, torch.float32, "test").autocast():
        assert (a @ a).dtype == torch.float32


@pytest.mark.parametrize(
    ("jobs", "device", "tasks", "expected"),
    [
        (3, "cpu", 9, 3),  # as configured
        (3, "cpu", 2, 2),  # never more than there is to do
        (3, "cuda", 9, 3),
        (0, "cpu", 9, 4),  # one per core
        (0, "cpu", 1, 1),
        (0, "cuda", 9, 1),
    ],
)
def test_worker_count(monkeypatch, jobs, device, tasks, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)

    assert worker_count(jobs, torch.device(device), tasks) == expected


def test_worker_count_where_affinity_is_unknown(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)

    assert worker_count(0, CPU, 9) == 1


@pytest.mark.parametrize(("given", "expected"), [("3", 3), ("2,4", 2), ("", 7), ("many", 7), ("0", 7)])
def test_threads_follow_the_environment_where_none_are_configured(monkeypatch, given, expected):
    monkeypatch.setattr("mcpmix.core.device.core_count", lambda: 7)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert thread_count() == expected
    setup("cpu", "float32", 0, deterministic=False)
    assert torch.get_num_threads() == expected
    setup("cpu", "float32", 1, deterministic=False)
    assert torch.get_num_threads() == 1


def test_autocast_on_a_cpu_takes_plain_attention_and_puts_the_choice_back():
    assert torch.backends.cuda.flash_sdp_enabled()
    with Runtime(CPU, torch.bfloat16, "test").autocast():
        assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()
