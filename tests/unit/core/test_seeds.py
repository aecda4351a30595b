"""Random streams belong to identities."""

import hashlib
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from mcpmix.core.seeds import numpy_rng, numpy_stream, seed_everything, seed_for, torch_rng


@pytest.fixture
def global_streams():
    """Put the global streams back after a test that seeds them."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def test_seed_is_the_leading_63_bits_of_sha256():
    digest = hashlib.sha256(b"'run'\x1f'image-7'\x1f0").hexdigest()

    assert seed_for("run", "image-7", 0) == int(digest, 16) >> (256 - 63)


def test_seed_does_not_depend_on_the_process():
    # Python's own hash() of strings changes from process to process; this one must not.
    code = "from mcpmix.core.seeds import seed_for; print(seed_for('run', 'image-7', 3))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert int(result.stdout) == seed_for("run", "image-7", 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", 1), ("a1",)),
        (("a", "b"), ("b", "a")),
        (("a", 1), ("a", "1")),
        (("a\x1f'b'",), ("a", "b")),
        ((), ("",)),
        ((1,), (1.0,)),
    ],
)
def test_identities_that_look_alike_have_other_seeds(one, other):
    assert seed_for(*one) != seed_for(*other)


def test_seeds_fit_torch_and_are_spread():
    seeds = {seed_for("spread", index) for index in range(2000)}

    assert len(seeds) == 2000
    assert min(seeds) >= 0
    assert max(seeds) < 2**63
    # Uniform seeds have each of their 63 bits set in about half of the cases (1000 ± 22).
    for bit in range(63):
        assert 880 < sum(seed >> bit & 1 for seed in seeds) < 1120


def test_numpy_stream_belongs_to_its_identity():
    assert np.array_equal(numpy_rng("run", 1).random(5), numpy_rng("run", 1).random(5))
    assert not np.array_equal(numpy_rng("run", 1).random(5), numpy_rng("run", 2).random(5))
    assert np.array_equal(numpy_rng("run").random(5), np.random.default_rng(seed_for("run")).random(5))


def test_torch_stream_belongs_to_its_identity_and_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    first = torch.rand(5, generator=torch_rng("run", 1))

    assert torch.equal(first, torch.rand(5, generator=torch_rng("run", 1)))
    assert not torch.equal(first, torch.rand(5, generator=torch_rng("run", 2)))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.usefixtures("global_streams")
def test_seed_everything_fixes_all_three_global_streams():
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    seed = seed_everything("run", 7)
    first = draw()
    second = draw()
    seed_everything("run", 7)

    assert seed == seed_for("run", 7)
    assert draw() == first
    assert all(one != other for one, other in zip(first, second, strict=True))


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
