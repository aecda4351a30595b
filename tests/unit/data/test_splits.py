"""Splits: whole groups, fixed by the seed, every problem of a split file at once."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpmix.core.errors import DataError
from mcpmix.data.sample import Sample
from mcpmix.data.splits import Split, group_split, read_split, require_same_images, write_split


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
        "test, because groups are never cut: add patients, or give a split file."
    )


@pytest.mark.parametrize(("validation", "test"), [(0.5, 0.5), (-0.1, 0.2), (0.2, -0.1)])
def test_impossible_shares(validation, test):
    with pytest.raises(DataError) as caught:
        group_split(samples_of(1, 1, 1), validation, test, seed=0)
    assert str(caught.value) == (
        f"Cannot split with a validation share of {validation} and a test share of {test}. Expected two "
        "shares of at least 0 with a sum below 1: lower them."
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
        "  - group g0 is cut (train: g0_0; test: g0_1). Put all of its samples into one part.",
        "  - group g1 is cut (train: g1_0; test: g1_0). Put all of its samples into one part.",
    ]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"train": ["a"], "val": ["b"], "test": ["c"]}', "train, val, test"),
        ('{"train": ["a"], "validation": "b", "test": ["c"]}', "train, validation, test"),
        ('{"train": [1], "validation": ["b"], "test": ["c"]}', "train, validation, test"),
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
        f"The split file {path} has another form (found: {found}). Expected "
        '{"train": [...], "validation": [...], "test": [...]} with lists of ids in quotes.'
    )


def test_split_file_that_cannot_be_read(tmp_path):
    path = tmp_path / "split.json"
    with pytest.raises(DataError, match=r"split\.json does not exist\. Check data\.split\.file\."):
        read_split(path, [])
    for content in (b"{", b"\xff\xfe\x00"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"split\.json cannot be read: .+\. Expected JSON: correct it\."):
            read_split(path, [])
