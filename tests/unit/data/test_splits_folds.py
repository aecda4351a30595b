import numpy as np
import pytest

from mcpmix.core.errors import DataError
from mcpmix.data.sample import Sample
from mcpmix.data.splits import fold_split, hold_out, stratified_split


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


def groups_of(ids):
    return {name[:3] for name in ids}


def test_folds_are_disjoint_complete_and_keep_groups_whole():
    samples, areas = make(17, lambda group: 3 + group % 5)
    splits = [fold_split(samples, areas, 5, fold, 0.2, seed=3) for fold in range(5)]
    tested = [name for split in splits for name in split.test]
    assert sorted(tested) == sorted(sample.id for sample in samples)
    for split in splits:
        assert sorted(split.train + split.validation + split.test) == sorted(tested)
        parts = [groups_of(ids) for ids in split.parts().values()]
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
    assert [len(groups_of(ids)) for ids in split.parts().values()] == [1, 1, 1]


def test_too_few_groups():
    samples, areas = make(2, lambda group: 5)
    with pytest.raises(DataError, match=r"10 samples belong to 2 group\(s\). Expected at least 3"):
        stratified_split(samples, areas, 0.2, 0.2, seed=0)
    with pytest.raises(DataError, match="Expected at least 2, one of them for validation"):
        hold_out(samples[:5], 0.2, seed=0)


def test_hold_out_takes_whole_groups_and_leaves_some():
    samples, _ = make(5, lambda group: 3)
    assert len(groups_of(hold_out(samples, 0.4, seed=0))) == 2
    assert len(hold_out(samples, 0.4, seed=0)) == 6
    assert len(groups_of(hold_out(samples, 0.0, seed=0))) == 1
    assert len(groups_of(hold_out(samples, 1.0, seed=0))) == 4
