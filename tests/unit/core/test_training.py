"""Nested states in one safetensors file, loops that are resumed from it, optimisers and their rates."""

import errno
import json
import math
import os
import sys
import threading
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from tests.helpers.progress import Recorder
from torch import nn

from mcpmix.core import training
from mcpmix.core.errors import DependencyError, ModelError, StorageError, TrainingError
from mcpmix.core.files import storage_errors
from mcpmix.core.seeds import torch_rng
from mcpmix.core.training import (
    JsonLines,
    build_adamw,
    cosine,
    load_state,
    one_ahead,
    one_cycle,
    restore,
    run_steps,
    save_state,
    warm_up,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


def assert_same(one, other):
    """Equal in values, types, key types, dtypes and shapes."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert [type(key) for key in one] == [type(key) for key in other]
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


def trained(kind, **settings):
    """A small network after three steps of an optimiser, and that optimiser."""
    network = nn.Linear(3, 2)
    optimiser = kind(network.parameters(), **settings)
    for step in range(3):
        optimiser.zero_grad()
        network(torch.rand(4, 3, generator=torch_rng("batch", step))).square().mean().backward()
        optimiser.step()
    return network, optimiser


class TestRoundTrip:
    def test_nested_containers_keep_their_types(self, path):
        state = {
            "int": 7,
            "large": 2**62 + 1,
            "float": 0.1 + 0.2,
            "text": "Bärbel\n",
            "none": None,
            "flag": True,
            "list": [1, [2.5, "x"], {}],
            "tuple": (1, (2, torch.ones(2))),
            3: {"key": "is an integer"},
            None: "key is none",
        }
        save_state(path, state)

        assert_same(load_state(path), state)

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.tensor(3.5),
            torch.zeros(0, 3),
            torch.tensor([True, False]),
            torch.tensor([1, 2**40]),
            torch.tensor([1.5, float("inf")], dtype=torch.bfloat16),
            torch.tensor([0.1], dtype=torch.float64),
            torch.arange(6).reshape(2, 3).T,  # not contiguous
            torch.ones(2, requires_grad=True),
        ],
        ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
    )
    def test_tensors_keep_dtype_shape_and_value(self, path, tensor):
        save_state(path, [tensor])

        assert_same(load_state(path), [tensor.detach()])

    def test_tied_weights_share_memory_and_still_come_back(self, path):
        weight = torch.rand(2, 2, generator=torch_rng("tied"))
        save_state(path, {"encoder": weight, "decoder": weight, "view": weight[0]})

        assert_same(load_state(path), {"encoder": weight, "decoder": weight, "view": weight[0]})

    def test_a_state_without_tensors(self, path):
        save_state(path, {"steps": 0})

        assert load_state(path) == {"steps": 0}

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [(torch.optim.AdamW, {"lr": 0.1, "amsgrad": True}), (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})],
    )
    def test_an_optimiser_goes_on_exactly(self, path, kind, settings):
        network, optimiser = trained(kind, **settings)
        state = optimiser.state_dict()
        save_state(path, {"network": network.state_dict(), "optimiser": state})
        loaded = load_state(path)

        assert_same(loaded["optimiser"], state)
        assert set(loaded["optimiser"]["state"]) == {0, 1}  # integers, as torch needs them

        copy = nn.Linear(3, 2)
        other = kind(copy.parameters(), **settings)
        copy.load_state_dict(loaded["network"])
        other.load_state_dict(loaded["optimiser"])
        for parameters, stepper in ((network, optimiser), (copy, other)):
            for parameter in parameters.parameters():
                parameter.grad = torch.full_like(parameter, 0.3)
            stepper.step()
        assert_same(dict(network.state_dict()), dict(copy.state_dict()))


class TestWriting:
    def test_the_old_state_stays_until_the_new_one_is_complete(self, path, monkeypatch):
        save_state(path, {"steps": 1})

        def fail(source, destination):
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="broken"):
            save_state(path, {"steps": 2})

        assert load_state(path) == {"steps": 1}

    def test_nothing_is_left_beside_the_file(self, path):
        save_state(path, {"x": torch.ones(1)})
        save_state(path, {"x": torch.ones(2)})

        assert [item.name for item in path.parent.iterdir()] == [path.name]

    def test_what_cannot_be_stored_is_named_and_the_old_state_stays(self, path):
        save_state(path, {"steps": 1})

        with pytest.raises(TypeError, match="a checkpoint cannot hold set"):
            save_state(path, {"steps": {1, 2}})
        assert load_state(path) == {"steps": 1}

    def test_a_full_disk_becomes_a_message_and_the_old_state_stays(self, path, monkeypatch):
        save_state(path, {"steps": 1})

        def full(*args, **kwargs):  # the error of safetensors on a full disk, as measured
            text = "Error while serializing: I/O error: No space left on device (os error 28)"
            raise training.SafetensorError(text)

        monkeypatch.setattr(training, "save_file", full)
        with pytest.raises(StorageError, match="is full"), storage_errors(path.parent):
            save_state(path, {"steps": 2})

        assert load_state(path) == {"steps": 1}


class TestDamage:
    @pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
    def test_a_file_cut_short_is_named(self, path, share):
        save_state(path, {"x": torch.ones(1000)})
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

        with pytest.raises(
            ModelError,
            match=r"Cannot read the checkpoint .*checkpoint\.safetensors: .*Delete it to start over\.",
        ):
            load_state(path)

    def test_a_file_of_another_kind_is_named(self, path):
        path.write_text("not a checkpoint at all, only words\n" * 10)

        with pytest.raises(ModelError, match="Cannot read the checkpoint"):
            load_state(path)

    def test_a_missing_file_is_named(self, path):
        with pytest.raises(ModelError, match=r"Cannot read the checkpoint .*No such file"):
            load_state(path)

    @pytest.mark.parametrize(("metadata", "name"), [(None, "None"), ({"format": "pt"}, "'pt'")])
    def test_plain_weights_are_not_a_checkpoint(self, path, metadata, name):
        save_file({"x": torch.ones(1)}, path, metadata=metadata)

        message = rf"is not a checkpoint of this program: its format is {name}, expected 'mcpmix-state-1'"
        with pytest.raises(ModelError, match=message):
            load_state(path)


# --- loops that are stopped and go on as if nothing had happened -------------------------------------------


class Stopped(Exception):  # noqa: N818
    """Stands for a kill."""


class Job:
    """Least squares with a small network, batches by step, moments and a learning rate schedule."""

    def __init__(self, folder):
        self.network = nn.Linear(4, 2)
        with torch.no_grad():
            for index, parameter in enumerate(self.network.parameters()):
                parameter.copy_(torch.randn(parameter.shape, generator=torch_rng("start", index)))
        self.optimiser = torch.optim.AdamW(self.network.parameters(), lr=0.05)
        self.rates = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimiser, T_max=20)
        self.checkpoint = folder / "checkpoint.safetensors"
        self.seen = []
        self.saved = []
        self.resumed = []
        self.stop_at = None

    def step(self, index):
        if index == self.stop_at:
            raise Stopped
        rng = torch_rng("step", index)
        inputs, targets = torch.randn(8, 4, generator=rng), torch.randn(8, 2, generator=rng)
        loss = (self.network(inputs) - targets).square().mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.rates.step()
        self.seen.append(index)
        return loss.item()

    def state(self):
        return {"network": self.network, "optimiser": self.optimiser, "rates": self.rates}

    def run(self, steps=20, save_every=6, **options):
        run_steps(
            self.step,
            steps=steps,
            state=self.state(),
            checkpoint=self.checkpoint,
            save_every=save_every,
            title="train",
            after_save=self.saved.append,
            on_resume=self.resumed.append,
            **options,
        )
        return self


def bits(node):
    """A state with every tensor as its bytes. (Files differ: safetensors does not order its header.)"""
    if isinstance(node, torch.Tensor):
        return node.dtype, tuple(node.shape), node.numpy().tobytes()
    if isinstance(node, dict):
        return {key: bits(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [bits(value) for value in node]
    return node


@pytest.fixture
def uninterrupted(tmp_path):
    folder = tmp_path / "reference"
    folder.mkdir()
    return Job(folder).run()


def test_every_step_runs_once_in_order_and_the_last_is_saved(uninterrupted):
    assert uninterrupted.seen == list(range(20))
    assert uninterrupted.saved == [6, 12, 18, 20]
    assert uninterrupted.resumed == [0]
    assert load_state(uninterrupted.checkpoint)["steps"] == 20


@pytest.mark.parametrize("stop_at", [0, 3, 6, 13, 19])
def test_a_stopped_run_ends_bit_for_bit_like_an_uninterrupted_one(tmp_path, uninterrupted, stop_at):
    first = Job(tmp_path)
    first.stop_at = stop_at
    with pytest.raises(Stopped):
        first.run()

    second = Job(tmp_path).run()

    last_save = stop_at // 6 * 6
    assert second.resumed == [last_save]
    assert second.seen == list(range(last_save, 20))
    assert bits(load_state(second.checkpoint)) == bits(load_state(uninterrupted.checkpoint))


def test_stopped_many_times(tmp_path, uninterrupted):
    for stop_at in (4, 8, 8, 15):
        job = Job(tmp_path)
        job.stop_at = stop_at
        with pytest.raises(Stopped):
            job.run(save_every=2)
    job = Job(tmp_path).run(save_every=2)

    assert job.seen == list(range(14, 20))
    assert bits(load_state(job.checkpoint)) == bits(load_state(uninterrupted.checkpoint))


def test_a_finished_run_does_no_step_and_restores_its_state(tmp_path, uninterrupted):
    again = Job(uninterrupted.checkpoint.parent).run()

    assert again.seen == []
    for one, other in zip(again.network.parameters(), uninterrupted.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_kill_between_saving_and_the_callback_does_not_lose_the_callback(tmp_path):
    first = Job(tmp_path)

    class KilledHere(list):
        def append(self, steps):
            if steps == 20:
                raise Stopped
            super().append(steps)

    first.saved = KilledHere()
    with pytest.raises(Stopped):
        first.run()
    second = Job(tmp_path).run()

    assert second.seen == []
    assert second.saved == [20]


def test_progress_counts_what_is_left_and_shows_the_loss(tmp_path):
    first = Job(tmp_path)
    first.stop_at = 7
    with pytest.raises(Stopped):
        first.run()
    progress = Recorder()
    Job(tmp_path).run(progress=progress)

    assert progress.tasks == [("train", 20, 6)]
    assert [steps for steps, _ in progress.steps] == [1] * 14
    assert all(note.startswith("loss ") and math.isfinite(float(note[5:])) for _, note in progress.steps)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(tmp_path, bad):
    job = Job(tmp_path)
    healthy = job.step
    job.step = lambda index: bad if index == 8 else healthy(index)

    message = (
        rf"^train: the loss of step 8 is {bad} \(last good state: .*checkpoint\.safetensors\)\. Lower the"
    )
    with pytest.raises(TrainingError, match=message):
        job.run()

    assert load_state(job.checkpoint)["steps"] == 6


def test_a_loss_that_is_not_finite_before_the_first_save_says_so(tmp_path):
    job = Job(tmp_path)
    job.step = lambda _: math.nan

    with pytest.raises(TrainingError, match=r"the loss of step 0 is nan \(no state saved yet\)"):
        job.run()
    assert not job.checkpoint.exists()


def test_a_damaged_checkpoint_is_named_before_any_step(tmp_path):
    job = Job(tmp_path)
    job.checkpoint.write_bytes(b"damaged")

    with pytest.raises(ModelError, match=r"Cannot read the checkpoint .*Delete it to start over"):
        job.run()
    assert job.seen == []


def test_restore_without_a_checkpoint_changes_nothing(tmp_path):
    job = Job(tmp_path)
    before = job.network.weight.detach().clone()

    assert restore(job.state(), job.checkpoint) == 0
    assert torch.equal(job.network.weight, before)


def test_a_second_rhythm_of_saves(tmp_path):
    job = Job(tmp_path).run(also_save_every=8)
    assert job.saved == [6, 8, 12, 16, 18, 20]


def test_one_who_does_not_write_reads_and_steps(tmp_path):
    writer = Job(tmp_path)
    writer.stop_at = 13
    with pytest.raises(Stopped):
        writer.run()
    before = writer.checkpoint.read_bytes()
    reader = Job(tmp_path).run(write=False)

    assert reader.seen == list(range(12, 20))
    assert reader.saved == []
    assert reader.resumed == [12]
    assert reader.checkpoint.read_bytes() == before


def test_a_checkpoint_of_another_version_is_named_with_what_it_lacks(tmp_path):
    path = tmp_path / "checkpoint"
    save_state(path, {"steps": 1, "state": {"model": {}}})
    with pytest.raises(StorageError, match="lacks average, rates: another version wrote it"):
        restore(dict.fromkeys(["model", "rates", "average"]), path)


@pytest.fixture
def log(tmp_path):
    return JsonLines(tmp_path / "log.jsonl")


def test_a_log_that_does_not_exist_has_no_rows(log):
    assert log.rows() == []
    assert not log.path.exists()


def test_rows_come_back_in_order_with_their_values(log):
    log.append(epoch=1, loss=0.1 + 0.2, validation={"dsc": 71.5}, note=None)
    log.append(epoch=2, loss=0.25)

    assert log.rows() == [
        {"epoch": 1, "loss": 0.1 + 0.2, "validation": {"dsc": 71.5}, "note": None},
        {"epoch": 2, "loss": 0.25},
    ]


def test_each_row_is_a_line_of_its_own_and_readable_text(log):
    log.append(id="Bärbel", epoch=1)
    log.append(id="two\nlines", epoch=2)

    lines = log.path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["Bärbel", "two\nlines"]
    assert "Bärbel" in lines[0]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x1e", "\r"])
def test_unicode_line_separators_inside_a_value_do_not_cut_the_row(log, separator):
    log.append(id=f"a{separator}b")
    log.append(id="next")

    assert [row["id"] for row in log.rows()] == [f"a{separator}b", "next"]


def test_a_row_cut_short_anywhere_by_a_kill_is_left_out(log):
    log.append(epoch=1)
    whole = log.path.read_bytes()
    log.append(epoch=2, id="Bärbel")
    last = log.path.read_bytes()[len(whole) :]

    for length in range(len(last) - 2):  # up to and without the closing brace, also inside of "ä"
        log.path.write_bytes(whole + last[:length])
        assert log.rows() == [{"epoch": 1}], f"cut after {length} bytes"


def test_damage_before_the_last_row_is_told_with_its_line(log):
    for epoch in (1, 2, 3):
        log.append(epoch=epoch)
    log.path.write_bytes(log.path.read_bytes().replace(b'{"epoch": 2}', b'{"epoch": '))

    with pytest.raises(StorageError, match=r"log\.jsonl, line 2, is not JSON .* delete its folder"):
        log.rows()


def test_a_resumed_run_rewrites_what_it_keeps_and_appends(log):
    for epoch in (1, 2, 3):
        log.append(epoch=epoch)
    with log.path.open("a") as file:
        file.write('{"epoch": 4, "lo')  # killed here

    log.rewrite(row for row in log.rows() if row["epoch"] <= 2)
    log.append(epoch=3, again=True)

    assert log.rows() == [{"epoch": 1}, {"epoch": 2}, {"epoch": 3, "again": True}]
    assert [path.name for path in log.path.parent.iterdir()] == ["log.jsonl"]


def test_a_failed_rewrite_leaves_the_old_rows(log):
    log.append(epoch=1)

    with pytest.raises(TypeError, match="not JSON serializable"):
        log.rewrite([{"epoch": 1}, {"epoch": object()}])

    assert log.rows() == [{"epoch": 1}]


def test_a_row_that_is_not_json_writes_nothing(log):
    with pytest.raises(TypeError, match="not JSON serializable"):
        log.append(epoch=1, value=object())

    assert log.rows() == []


def groups():
    return [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (1.0, 0.1)]


def test_each_group_rises_to_its_own_rate_whatever_was_called_before():
    optimiser = build_adamw(groups(), 0.01, "adamw")
    for step, factor in ((0, 0.25), (2, 0.75), (3, 1.0), (50, 1.0), (1, 0.5)):
        warm_up(optimiser, step, 3)
        assert [group["lr"] for group in optimiser.param_groups] == pytest.approx([factor, 0.1 * factor])
    warm_up(optimiser, 0, 0)
    assert optimiser.param_groups[0]["lr"] == 1.0


def test_a_resumed_optimiser_keeps_its_full_rates():
    first = build_adamw(groups(), 0.01, "adamw")
    warm_up(first, 0, 3)
    second = build_adamw(groups(), 0.01, "adamw")
    second.load_state_dict(first.state_dict())
    warm_up(second, 3, 3)
    assert [group["lr"] for group in second.param_groups] == [1.0, 0.1]


def rates_of(course, *, rate, steps):
    """Rates of all groups in each step."""
    optimiser = torch.optim.AdamW(
        [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate}, {"params": [nn.Parameter(torch.zeros(1))]}]
    )
    schedule = course(optimiser)
    rates = []
    for _ in range(steps):
        rates.append([group["lr"] for group in optimiser.param_groups])
        optimiser.step()
        schedule.step()
    return list(zip(*rates, strict=True))


def test_a_cosine_rises_and_falls_for_the_first_group_alone():
    first, second = rates_of(lambda optimiser: cosine(optimiser, 200), rate=0.5, steps=201)
    assert first[:10] == pytest.approx([0.05 * n for n in range(1, 11)])
    assert first[105] == pytest.approx(0.25)  # half of the fall
    assert list(first[10:]) == sorted(first[10:], reverse=True)
    assert first[-1] == pytest.approx(0, abs=1e-12)
    assert set(second) == {1e-3}


def test_a_cosine_over_a_single_step_starts_at_the_full_rate():
    assert rates_of(lambda optimiser: cosine(optimiser, 1), rate=0.5, steps=1)[0] == (0.5,)


def test_one_cycle_peaks_at_the_rate_of_each_group():
    first, second = rates_of(lambda optimiser: one_cycle(optimiser, 200, 0.1), rate=0.5, steps=200)
    assert first.index(max(first)) == second.index(max(second)) == 19
    assert (max(first), max(second)) == (0.5, 1e-3)
    assert first[-1] < 1e-4 * first[0]


def test_missing_8_bit_optimiser_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"bitsandbytes.*mcpmix\[8bit\].*finetune.optimiser=adamw"):
        build_adamw(groups(), 0.01, "adamw-8bit")


def test_the_8_bit_optimiser_is_taken_where_it_is_installed(monkeypatch):
    class AdamW8bit(torch.optim.SGD):
        """Stands for the real one, which needs a GPU."""

    package, module = ModuleType("bitsandbytes"), ModuleType("bitsandbytes.optim")
    module.AdamW8bit = AdamW8bit
    monkeypatch.setitem(sys.modules, "bitsandbytes", package)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", module)
    monkeypatch.setattr(training, "find_spec", lambda name: object())
    optimiser = build_adamw(groups(), 0.25, "adamw-8bit")
    assert isinstance(optimiser, AdamW8bit)
    assert [(g["lr"], g["weight_decay"]) for g in optimiser.param_groups] == [(1.0, 0.25), (0.1, 0.25)]


def test_same_items_in_the_same_order():
    assert list(one_ahead(iter(range(20)))) == list(range(20))
    assert list(one_ahead(iter([]))) == []


def test_items_are_made_by_one_other_thread_while_the_one_before_is_in_use():
    makers, made = set(), threading.Event()

    def items():
        yield "first"
        makers.add(threading.get_ident())
        made.set()
        yield "second"

    coming = one_ahead(items())
    assert next(coming) == "first"
    assert made.wait(5)  # nobody has asked for the second yet
    assert next(coming) == "second"
    assert threading.get_ident() not in makers


def test_no_more_than_one_is_made_ahead():
    started = []

    def items():
        for number in range(5):
            started.append(number)
            yield number

    coming = one_ahead(items())
    next(coming)
    coming.close()  # waits for what is in the making
    assert started == [0, 1]


def test_none_is_an_item():
    assert list(one_ahead(iter([None, 1, None]))) == [None, 1, None]


def test_an_error_comes_where_its_item_would():
    def items():
        yield 1
        raise ValueError("broken")

    coming = one_ahead(items())
    assert next(coming) == 1
    with pytest.raises(ValueError, match="broken"):
        next(coming)


def test_stopping_early_leaves_no_thread():
    before = threading.active_count()
    coming = one_ahead(iter(range(5)))
    next(coming)
    coming.close()
    assert threading.active_count() == before
