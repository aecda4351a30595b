import numpy as np

from mcpmix.data.audit import Facts, clusters
from mcpmix.data.likeness import fingerprint
from mcpmix.data.sample import Sample


def picture(seed, shift=0.0):
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:48, 0:64].astype(float)
    waves = sum(
        30 * np.sin(rng.uniform(0.05, 0.3) * rows + rng.uniform(0.05, 0.3) * (columns + shift) + phase)
        for phase in rng.uniform(0, 6, 5)
    )
    return np.clip(np.stack([120 + waves] * 3, axis=2), 0, 255).astype(np.uint8)


def facts(name, image=None, group=None):
    sample = Sample(name, name, name, group or name, "x")
    return Facts(sample, fingerprint=None if image is None else fingerprint(image))


def test_nearness_is_passed_on_and_strangers_stay_apart():
    near = [facts(f"a{number}", picture(1, shift=1.0 * number)) for number in range(5)]
    groups = clusters([*near, facts("b", picture(2)), facts("broken")])
    assert groups == {
        "a0": "a0",
        "a1": "a0",
        "a2": "a0",
        "a3": "a0",
        "a4": "a0",
        "b": "b",
        "broken": "broken",
    }


def test_known_groups_are_kept_and_joined():
    groups = clusters(
        [facts("a", picture(1), "p1"), facts("b", picture(2), "p1"), facts("c", picture(2), "p2"),
         facts("d", picture(3), "p2"), facts("e", picture(4), "p3")]
    )  # fmt: skip
    assert groups == {"a": "a", "b": "a", "c": "a", "d": "a", "e": "e"}
