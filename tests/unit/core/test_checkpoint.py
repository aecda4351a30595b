"""Nested states in one safetensors file."""

import errno
import os

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mcpmix.core import checkpoint
from mcpmix.core.checkpoint import load_state, save_state
from mcpmix.core.errors import ModelError, StorageError
from mcpmix.core.seeds import torch_rng
from mcpmix.core.stage_folder import storage_errors


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
            raise checkpoint.SafetensorError(text)

        monkeypatch.setattr(checkpoint, "save_file", full)
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
            match=r"Cannot read the checkpoint .*checkpoint\.safetensors: .*Delete it to start anew\.",
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
