from pathlib import Path

import pytest

from mcpmix.config import SplitConfig
from mcpmix.core.errors import ConfigError, DataError
from mcpmix.data.layouts import Collection
from mcpmix.data.planning import load_collection, make_split
from mcpmix.data.splits import group_split

SHARED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture
def samples(make_pair):
    return tuple(make_pair(f"s{number}", look=number, group=f"g{number // 2}") for number in range(12))


def test_sources_by_name(make_pair, tmp_path):
    make_pair("a")
    folders = {"images": tmp_path / "images", "masks": tmp_path / "masks"}
    assert [sample.id for sample in load_collection("folder", **folders).samples] == ["a"]
    assert load_collection("folder", root=tmp_path).samples[0].id == "a"
    assert load_collection("kvasir-seg", root=tmp_path).samples[0].source == "kvasir-seg"
    with pytest.raises(ConfigError, match=r"no source 'kvasir'\. Known: folder, .*phantom, cvc-clinicdb"):
        load_collection("kvasir", root=tmp_path)
    with pytest.raises(ConfigError, match=r"data\.root: missing"):
        load_collection("nnunet")


def test_random_is_the_split_by_groups(samples):
    planned = make_split(Collection(samples), SplitConfig(), 5)
    assert planned.split == group_split(samples, 0.15, 0.2, 5)
    assert planned.leaks == ""


def test_folds_ask_for_the_size_of_each_lesion_once(samples):
    asked = []
    plan = SplitConfig(method="kfold", folds=3, fold=1, validation=0.3)
    make_split(Collection(samples), plan, 0, area_of=lambda sample: asked.append(sample.id) or 0.1)
    assert sorted(asked) == sorted(sample.id for sample in samples)
    tested = [
        name
        for fold in range(3)
        for name in make_split(
            Collection(samples), SplitConfig(method="kfold", folds=3, fold=fold), 0
        ).split.test
    ]
    assert sorted(tested) == sorted(sample.id for sample in samples)
    assert make_split(Collection(samples), SplitConfig(method="stratified"), 0).split.test


def test_a_published_split_without_validation_gets_one_by_whole_groups(samples):
    parts = {sample.id: "test" if sample.group in ("g0", "g1") else "train" for sample in samples}
    del parts["s11"]
    planned = make_split(Collection(samples, {"official": parts}), SplitConfig(method="official"), 0)
    assert set(planned.split.test) == {"s0", "s1", "s2", "s3"}
    assert len(planned.split.validation) in (1, 2)
    used = {name for ids in planned.split.parts().values() for name in ids}
    assert used == {f"s{number}" for number in range(11)}


def test_a_cut_group_is_refused_unless_the_split_is_known_for_it(samples):
    parts = {sample.id: ("train", "validation", "test")[number % 3] for number, sample in enumerate(samples)}
    with pytest.raises(DataError, match=r"group g0 is cut \(train, validation\)"):
        make_split(Collection(samples, {"official": parts}), SplitConfig(method="official"), 0)
    known = Collection(samples, {"old": parts}, leaks={"old": "frames of one video"})
    planned = make_split(known, SplitConfig(method="old"), 0)
    assert planned.leaks == "frames of one video"
    assert planned.split.train == ("s0", "s3", "s6", "s9")


def test_a_split_that_is_not_there(samples):
    with pytest.raises(ConfigError, match=r"no split 'pranet'\. Known for it: random, stratified, kfold"):
        make_split(Collection(samples), SplitConfig(method="pranet"), 0)
    only_train = Collection(samples, {"official": dict.fromkeys((s.id for s in samples), "train")})
    with pytest.raises(DataError, match="test is empty"):
        make_split(only_train, SplitConfig(method="official"), 0)


@pytest.mark.skipif(not (SHARED / "CVC-ClinicDB").is_dir(), reason="no CVC-ClinicDB here")
def test_pranets_split_of_cvc_clinicdb_is_marked():
    collection = load_collection("cvc-clinicdb", root=SHARED / "CVC-ClinicDB")
    planned = make_split(collection, SplitConfig(method="pranet"), 0)
    assert len(planned.split.test) == 62
    assert "same video sequences" in planned.leaks
    assert make_split(collection, SplitConfig(), 0).leaks == ""
