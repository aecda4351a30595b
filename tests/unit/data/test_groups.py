"""Groups guessed from near-duplicates and from the order of files."""

import os
from pathlib import Path

import numpy as np
from tests.unit.data.test_likeness import video, waves

from mcpmix.data.facts import Facts
from mcpmix.data.groups import guess_groups
from mcpmix.data.likeness import colours_of, look_of
from mcpmix.data.sample import Sample


def facts(name, image=None, group=None, path=None):
    sample = Sample(name, path or Path(name), path or Path(name), group or name, "x")
    if image is None:
        return Facts(sample)
    return Facts(sample, look=look_of(image), colours=colours_of(image))


def test_nearness_is_passed_on_and_strangers_stay_apart():
    near = [facts(f"a{number}", waves(1, shift=1.0 * number)) for number in range(5)]
    guess = guess_groups([*near, facts("b", waves(2)), facts("broken")])
    assert guess.group_of == {
        **dict.fromkeys(["a0", "a1", "a2", "a3", "a4"], "a0"),
        "b": "b",
        "broken": "broken",
    }
    assert "7 images in 3 groups; 2 hold one image" in list(guess.lines())


def test_known_groups_are_kept_and_joined():
    guess = guess_groups(
        [facts("a", waves(1), "p1"), facts("b", waves(2), "p1"), facts("c", waves(2), "p2"),
         facts("d", waves(3), "p2"), facts("e", waves(4), "p3")]
    )  # fmt: skip
    assert guess.group_of == {"a": "a", "b": "a", "c": "a", "d": "a", "e": "e"}


def frames(names):
    pictures = [frame for seed in range(8) for frame in video(seed, 7, drift=6)]
    return [facts(name, picture) for name, picture in zip(names, pictures, strict=True)]


def test_frames_of_one_video_are_one_group_by_the_numbers_in_their_names():
    found = frames([f"frame{number}" for number in range(56)])  # frame10 comes after frame9, not frame1
    guess = guess_groups(sorted(found, key=lambda item: item.sample.id))
    assert guess.order == "name"
    for number in range(56):
        assert guess.group_of[f"frame{number}"] == guess.group_of[f"frame{7 * (number // 7)}"]
    assert 6 <= len(set(guess.group_of.values())) <= 8  # neighbours that look alike may share a group
    assert any("these are frames of videos" in line for line in guess.lines())


def test_without_an_order_the_guess_says_that_it_is_incomplete():
    names = [f"{place:04d}" for place in np.random.default_rng(0).permutation(56)]
    guess = guess_groups(sorted(frames(names), key=lambda item: item.sample.id))
    assert guess.order == ""
    assert any(line.startswith("warning: ") and "a split by them leaks" in line for line in guess.lines())


def test_times_are_used_where_names_say_nothing(tmp_path):
    names = [f"{place:04d}" for place in np.random.default_rng(0).permutation(56)]
    found = []
    for second, item in enumerate(frames(names)):
        path = tmp_path / item.sample.id
        path.write_bytes(b"")
        os.utime(path, (second, second))
        found.append(
            Facts(
                Sample(item.sample.id, path, path, item.sample.id, "x"), look=item.look, colours=item.colours
            )
        )
    guess = guess_groups(sorted(found, key=lambda item: item.sample.id))
    assert guess.order == "time"
    assert 6 <= len(set(guess.group_of.values())) <= 8  # neighbours that look alike may share a group


def test_beginnings_of_names_are_offered():
    found = frames([f"video{number // 7:02d}_{number % 7}" for number in range(56)])
    assert any("names have 8 beginnings (video00_, video01_, video02_, ...)" in line
               for line in guess_groups(found).lines())  # fmt: skip
