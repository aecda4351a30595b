"""Groups guessed from near-duplicates and from the order of files."""

import colorsys
import os
from pathlib import Path

import numpy as np
import pytest
from tests.unit.data.test_leakage import two_looks, waves

from mcpmix.data.audit import Facts, colours_of
from mcpmix.data.groups import _joined, guess_groups, runs
from mcpmix.data.leakage import look_of
from mcpmix.data.sample import Sample


def video(seed, frames, drift=1.0):
    """Frames of one scene in its own tint, each moved on a little."""
    tint = np.array(colorsys.hsv_to_rgb(0.618 * seed % 1, 0.6, 1))
    return [(waves(seed, shift=drift * number) * tint).astype(np.uint8) for number in range(frames)]


def cut(pictures):
    return runs([look_of(picture) for picture in pictures], [colours_of(picture) for picture in pictures])


def test_runs_are_the_videos():
    lengths = [9, 6, 14, 7, 11, 8, 10]
    found = cut([frame for seed, frames in enumerate(lengths) for frame in video(seed, frames, drift=4)])
    assert found.ordered
    assert found.run_of.tolist() == [seed for seed, frames in enumerate(lengths) for _ in range(frames)]


def test_runs_agree_with_the_rule_one_pair_at_a_time():
    pictures = [frame for seed in range(8) for frame in video(seed, 6, drift=9)]
    count, colours = len(pictures), [colours_of(picture).astype(float) for picture in pictures]
    greys = [two_looks(picture)[1].astype(float) for picture in pictures]

    def apart(i, j):
        return 1 - colours[i] @ colours[j], 1 - np.corrcoef(greys[i], greys[j])[0, 1]

    def rank(value, reference):
        return (sum(other <= value + 1e-6 for other in reference) + 1) / (len(reference) + 1)

    steps = sorted({int(step) for step in np.linspace(count / 4, 3 * count / 4, 64)})
    far = [apart(i, (i + step) % count) for step in steps for i in range(count)]

    def both(pair):
        return sum(np.log(rank(pair[kind], [one[kind] for one in far])) for kind in (0, 1))

    usual = [both(pair) for pair in far]
    linked = [[rank(both(apart(i, i + step)), usual) <= 0.05 if i + step < count else False
               for i in range(count)] for step in range(1, 6)]  # fmt: skip
    open_gap = [
        not any(linked[step - 1][i] for step in range(1, 6) for i in range(max(0, gap - step + 1), gap + 1))
        for gap in range(count - 1)
    ]
    found = cut(pictures)
    assert found.close == pytest.approx(np.mean(linked[0][:-1]))
    cuts = set(np.flatnonzero(np.diff(found.run_of)).tolist())
    assert cuts <= set(np.flatnonzero(open_gap).tolist())  # short runs join, no other gap closes
    assert {6 * number - 1 for number in range(1, 8)} & cuts
    assert min(np.bincount(found.run_of)) >= 5


def test_short_runs_join_the_closer_side():
    gaps = np.array([0.01, 0.01, 0.01, 0.01, 0.2, 0.01, 0.4, 0.01, 0.01, 0.01, 0.01, 0.3])
    before = np.array([0] * 5 + [1] * 2 + [2] * 5 + [3])
    assert _joined(before, gaps).tolist() == [0] * 7 + [1] * 6


@pytest.mark.parametrize("seed", range(20))
def test_runs_join_as_if_all_were_looked_at_for_each(seed):
    rng = np.random.default_rng(seed)
    gaps = rng.choice([0.01, 0.2, 0.3, 0.4], 60) if seed % 2 else rng.random(60)
    starts = [0, *(np.flatnonzero(rng.random(60) < 0.05 * (1 + seed)) + 1).tolist(), 61]
    before, sides = np.repeat(np.arange(len(starts) - 1), np.diff(starts)), [np.inf, *gaps, np.inf]
    while len(starts) > 2 and min(np.diff(starts)) < 5:
        place = int(np.argmin(np.diff(starts)))
        left = sides[starts[place]] <= sides[starts[place + 1]] and place > 0
        del starts[place if left or place + 2 == len(starts) else place + 1]
    assert np.array_equal(_joined(before, gaps), np.repeat(np.arange(len(starts) - 1), np.diff(starts)))


def test_an_order_that_means_nothing_is_told_apart():
    pictures = [frame for seed in range(8) for frame in video(seed, 8)]
    shuffled = [pictures[place] for place in np.random.default_rng(1).permutation(len(pictures))]
    assert cut(pictures).close > 0.7
    assert not cut(shuffled).ordered
    assert not cut([waves(seed) for seed in range(60)]).ordered
    few = cut(pictures[:39])
    assert (few.ordered, len(set(few.run_of.tolist()))) == (False, 39)


def test_colours_are_shares_of_a_cube():
    picture = np.zeros((128, 128, 3), np.uint8)
    picture[:32] = (255, 16, 0)
    vector = colours_of(picture)
    assert {place: float(vector[place] ** 2) for place in np.flatnonzero(vector).tolist()} == pytest.approx(
        {0: 0.75, 15 * 256 + 1 * 16: 0.25}, abs=1e-3
    )


# --- groups ----------------------------------------------------------------------------------------------


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
