import torch

from mcpmix.core.seeds import numpy_stream


def test_the_stream_belongs_to_the_generator():
    first, again, other = (numpy_stream(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    drawn = first.random(5).tolist()
    assert drawn == again.random(5).tolist()
    assert drawn != other.random(5).tolist()


def test_the_next_stream_is_another():
    rng = torch.Generator().manual_seed(1)
    assert numpy_stream(rng).random() != numpy_stream(rng).random()


def test_global_streams_are_left_alone():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    numpy_stream(torch.Generator().manual_seed(1)).random()
    assert torch.equal(torch.get_rng_state(), state)
