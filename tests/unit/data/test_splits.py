"""Splits: whole groups, fixed by the seed, every problem of a split file at once."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmix.core.errors import DataError
from mcpmix.data.sample import Sample
from mcpmix.data.splits import (
    Split,
    fold_split,
    group_split,
    hold_out,
    keep_labels,
    read_split,
    require_same_images,
    stratified_split,
    write_split,
)


def samples_of(*groups: int) -> list[Sample]:
    """`groups[k]` samples in group gk."""
    return [
        Sample(f"g{group}_{number}", Path("i.png"), Path("m.png"), f"g{group}", "test")
        for group, count in enumerate(groups)
        for number in range(count)
    ]


def groups_in(ids: tuple[str, ...]) -> set[str]:
    return {name.split("_")[0] for name in ids}


@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=30),
    st.floats(0, 0.99),
    st.floats(0, 0.99),
    st.integers(0, 10),
)
def test_groups_stay_whole_and_every_sample_has_one_part(sizes, validation, test, seed):
    if validation + test >= 1:
        validation, test = validation / 2, test / 2
    samples = samples_of(*sizes)
    split = group_split(samples, validation, test, seed)
    parts = split.parts()
    assert sorted(name for ids in parts.values() for name in ids) == sorted(sample.id for sample in samples)
    groups = [groups_in(ids) for ids in parts.values()]
    assert all(groups)
    assert sum(len(group) for group in groups) == len(sizes)  # a group in two parts would be counted twice


def test_shares_are_shares_of_groups():
    split = group_split(samples_of(*range(1, 21)), validation=0.15, test=0.2, seed=0)
    assert [len(groups_in(ids)) for ids in split.parts().values()] == [13, 3, 4]


def test_training_keeps_a_group_when_the_shares_round_up():
    split = group_split(samples_of(1, 1, 1, 1), validation=0.49, test=0.5, seed=0)
    assert [len(ids) for ids in split.parts().values()] == [1, 2, 1]


def test_only_seed_and_content_matter():
    samples = samples_of(*[2] * 12)
    split = group_split(samples, 0.2, 0.2, seed=1)
    shuffled = random.Random(0).sample(samples, len(samples))
    assert group_split(shuffled, 0.2, 0.2, seed=1) == split
    assert len({group_split(samples, 0.2, 0.2, seed=seed) for seed in range(5)}) == 5


def test_too_few_groups():
    with pytest.raises(DataError) as caught:
        group_split(samples_of(4, 4), 0.2, 0.2, seed=0)
    assert str(caught.value) == (
        "The 8 samples belong to 2 group(s): g0, g1. Expected at least 3, one each for train, validation and "
        "test, because groups are never split: add patients, or give a split file."
    )


def test_file_round_trip_is_plain_json(tmp_path):
    samples = samples_of(2, 2, 2)
    split = Split(("g1_1", "g1_0"), ("g0_0",), ("g2_0", "g2_1"))  # g0_1 is left out on purpose
    path = tmp_path / "split.json"
    write_split(path, split)
    assert json.loads(path.read_text()) == {
        "train": ["g1_1", "g1_0"],
        "validation": ["g0_0"],
        "test": ["g2_0", "g2_1"],
    }
    assert read_split(path, samples) == split


def test_new_images_of_known_groups_are_a_part_of_their_own(tmp_path):
    samples = samples_of(3, 2, 2)
    split = Split(("g0_0", "g0_1"), ("g1_0",), ("g2_0",), ("g0_2",))
    path = tmp_path / "split.json"
    write_split(path, split)
    assert json.loads(path.read_text())["known"] == ["g0_2"]
    assert read_split(path, samples) == split
    assert list(split.parts()) == ["train", "validation", "test", "known"]
    path.write_text(json.dumps({"train": ["g0_0"], "validation": ["g1_0"], "test": ["g2_0"], "known": []}))
    with pytest.raises(DataError, match=r"known is empty\. Name at least one id\."):
        read_split(path, samples)


def test_known_images_are_of_groups_that_training_sees_and_no_other_part_does(tmp_path):
    path = tmp_path / "split.json"
    content = {
        "train": ["g0_0"],
        "validation": ["g1_0"],
        "test": ["g2_0", "g0_1"],
        "known": ["g0_2", "g1_1", "g3_0", "g0_0"],
    }
    path.write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        read_split(path, samples_of(3, 2, 2, 1))
    assert str(caught.value).split("\n")[1:] == [
        "  - g0_0 is named 2 times (train, known). Keep one of them.",
        "  - group g0 is split (train: g0_0; test: g0_1). Put all of its samples into one part.",
        "  - group g1 has images in known (g1_1) and none in train. Put them into validation.",
        "  - group g3 has images in known (g3_0) and none in train. Put them into test.",
    ]


def test_digests_in_a_split_file_name_images_that_were_replaced(tmp_path):
    split = Split(("g1_1", "g1_0"), ("g0_0",), ("g2_0", "g2_1"))
    path = tmp_path / "split.json"
    write_split(path, split, {"g1_1": "a", "g1_0": "b", "g0_0": "c"})
    assert read_split(path, samples_of(2, 2, 2)) == split
    require_same_images(path, {"g1_1": "a", "g1_0": "b", "g0_0": "c", "new": "d"})
    with pytest.raises(DataError) as caught:
        require_same_images(path, {"g1_1": "x", "g1_0": "b", "g0_0": "y"})
    lines = str(caught.value).split("\n")
    assert "was made for other images" in lines[0]
    assert lines[1:] == ["  - g1_1", "  - g0_0"]
    write_split(path, split)
    require_same_images(path, {"g1_1": "x"})  # nothing noted, nothing to compare


def test_all_problems_of_a_split_file(tmp_path):
    path = tmp_path / "split.json"
    content = {"train": ["g0_0", "g1_0", "g1_0", "typo"], "validation": [], "test": ["g0_1", "g2_0", "g1_0"]}
    path.write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        read_split(path, samples_of(2, 2, 2))
    assert str(caught.value).split("\n") == [
        f"The split file {path} does not fit the data set:",
        "  - validation is empty. Name at least one id.",
        "  - g1_0 is named 3 times (train, train, test). Keep one of them.",
        "  - typo (train) is not in the data set. Correct the id or remove it.",
        "  - group g0 is split (train: g0_0; test: g0_1). Put all of its samples into one part.",
        "  - group g1 is split (train: g1_0; test: g1_0). Put all of its samples into one part.",
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"train": ["a"], "val": ["b"], "test": ["c"]}', "train, val, test"),
        ('{"train": ["a"], "validation": "b", "test": ["c"]}', "train, validation, test"),
        ('{"train": [1], "validation": ["b"], "test": ["c"]}', "train, validation, test"),
        (
            '{"train": ["a"], "validation": ["b"], "test": ["c"], "known": "d"}',
            "train, validation, test, known",
        ),
        ("{}", "nothing"),
        ("[]", "list"),
    ],
)
def test_split_file_of_another_form(tmp_path, content, found):
    path = tmp_path / "split.json"
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        read_split(path, [])
    assert str(caught.value) == (
        f"The split file {path} has the wrong structure (found: {found}). Expected "
        '{"train": [...], "validation": [...], "test": [...]}, if wanted "known": [...], with lists of ids '
        "in quotes."
    )


def test_split_file_that_cannot_be_read(tmp_path):
    path = tmp_path / "split.json"
    with pytest.raises(DataError, match=r"split\.json does not exist\. Check data\.split\.file\."):
        read_split(path, [])
    for content in (b"{", b"\xff\xfe\x00"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"split\.json cannot be read: .+\. Expected JSON: correct it\."):
            read_split(path, [])


# --- sizes of lesions ------------------------------------------------------------------------------------


def make(groups, sizes, seed=0):
    """Samples of groups of the given sizes, and areas that differ between groups."""
    rng = np.random.default_rng(seed)
    samples, areas = [], {}
    for group in range(groups):
        level = rng.uniform(0.01, 0.5)
        for frame in range(sizes(group)):
            name = f"g{group:02}_{frame:02}"
            samples.append(Sample(name, name, name, f"g{group:02}", "x"))
            areas[name] = level * rng.uniform(0.7, 1.3)
    return samples, areas


def test_folds_are_disjoint_complete_and_keep_groups_whole():
    samples, areas = make(17, lambda group: 3 + group % 5)
    splits = [fold_split(samples, areas, 5, fold, 0.2, seed=3) for fold in range(5)]
    tested = [name for split in splits for name in split.test]
    assert sorted(tested) == sorted(sample.id for sample in samples)
    for split in splits:
        assert sorted(split.train + split.validation + split.test) == sorted(tested)
        parts = [groups_in(ids) for ids in split.parts().values()]
        assert all(parts)
        assert sum(map(len, parts)) == 17
        assert len(split.test) / len(samples) == pytest.approx(0.2, abs=0.05)


def test_the_order_of_the_samples_does_not_matter_but_the_seed_does():
    samples, areas = make(20, lambda group: 4)
    split = fold_split(samples, areas, 4, 1, 0.2, seed=0)
    assert fold_split(samples[::-1], areas, 4, 1, 0.2, seed=0) == split
    assert fold_split(samples, areas, 4, 1, 0.2, seed=1) != split
    assert stratified_split(samples[::-1], areas, 0.2, 0.2, 0) == stratified_split(
        samples, areas, 0.2, 0.2, 0
    )


def test_sizes_are_shared_out_better_than_by_chance():
    """The spread of the mean area over folds, against dealing the same groups at random."""
    samples, areas = make(40, lambda group: 5)
    rng = np.random.default_rng(1)

    def spread(folds):
        return np.std([np.mean([areas[name] for name in fold]) for fold in folds])

    dealt = spread([fold_split(samples, areas, 4, fold, 0.2, 0).test for fold in range(4)])
    chance = []
    for _ in range(50):
        order = rng.permutation(40).reshape(4, 10)
        chance.append(
            spread([[s.id for s in samples if int(s.group[1:]) in set(chosen)] for chosen in order])
        )
    assert dealt < np.quantile(chance, 0.1)


def test_shares_of_a_stratified_split_are_shares_of_the_images():
    samples, areas = make(30, lambda group: 1 + group % 7)
    split = stratified_split(samples, areas, 0.1, 0.3, seed=0)
    assert len(split.test) / len(samples) == pytest.approx(0.3, abs=0.04)
    assert len(split.validation) / len(samples) == pytest.approx(0.1, abs=0.04)


def test_as_many_groups_as_parts_gives_each_part_one():
    samples, areas = make(3, lambda group: 1 + 20 * (group == 0))
    split = stratified_split(samples, areas, 0.01, 0.01, seed=0)
    assert [len(groups_in(ids)) for ids in split.parts().values()] == [1, 1, 1]


def test_too_few_groups_to_deal():
    samples, areas = make(2, lambda group: 5)
    with pytest.raises(DataError, match=r"10 samples belong to 2 group\(s\). Expected at least 3"):
        stratified_split(samples, areas, 0.2, 0.2, seed=0)
    with pytest.raises(DataError, match="Expected at least 2, one of them for validation"):
        hold_out(samples[:5], 0.2, seed=0)


def test_hold_out_takes_whole_groups_and_leaves_some():
    samples, _ = make(5, lambda group: 3)
    assert len(groups_in(hold_out(samples, 0.4, seed=0))) == 2
    assert len(hold_out(samples, 0.4, seed=0)) == 6
    assert len(groups_in(hold_out(samples, 0.0, seed=0))) == 1
    assert len(groups_in(hold_out(samples, 1.0, seed=0))) == 4


# --- fewer labels ----------------------------------------------------------------------------------------


def test_fewer_labels_are_a_part_of_more_and_of_whole_groups():
    samples = samples_of(*[1, 2, 3] * 6)
    split = group_split(samples, 0.2, 0.2, seed=0)
    sizes = {f"g{number}": size for number, size in enumerate([1, 2, 3] * 6)}
    before: set[str] = set()
    for count in range(3, len(split.train) + 1):
        fewer = keep_labels(split, samples, count, seed=0)
        assert (fewer.validation, fewer.test) == (split.validation, split.test)
        assert before <= set(fewer.train) <= set(split.train)
        assert count - 3 < len(fewer.train) <= count
        assert len(fewer.train) == sum(sizes[group] for group in groups_in(fewer.train))
        before = set(fewer.train)
    assert fewer == split


def test_which_labels_are_kept_is_up_to_the_seed_and_not_to_the_order():
    samples = samples_of(*[1] * 30)
    split = group_split(samples, 0.2, 0.2, seed=0)
    kept = keep_labels(split, samples, 5, seed=1)
    assert keep_labels(split, samples[::-1], 5, seed=1) == kept
    assert len({keep_labels(split, samples, 5, seed=seed).train for seed in range(5)}) == 5


def test_more_labels_than_images_or_fewer_than_a_group():
    samples = samples_of(4, 4, 4, 4, 4)
    split = Split(tuple(s.id for s in samples[:12]), tuple(s.id for s in samples[12:16]), ("g4_0",))
    with pytest.raises(DataError, match=r"data\.labelled: 13 images .* training part has 12"):
        keep_labels(split, samples, 13, seed=0)
    with pytest.raises(DataError, match=r"data\.labelled: 3 is less than the 4 images .*\(g[012]\)"):
        keep_labels(split, samples, 3, seed=0)


def test_known_images_are_of_groups_that_keep_their_labels():
    samples = samples_of(2, 2, 2, 1, 1)
    split = Split(("g0_0", "g1_0", "g2_0"), ("g3_0",), ("g4_0",), ("g0_1", "g1_1", "g2_1"))
    fewer = keep_labels(split, samples, 2, seed=0)
    assert len(fewer.train) == 2
    assert groups_in(fewer.known) == groups_in(fewer.train)
    assert keep_labels(split, samples, 3, seed=0) == split
