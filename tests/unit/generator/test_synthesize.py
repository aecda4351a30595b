import json

import numpy as np
import pytest
from tests.helpers.progress import Recorder

from mcpmix.core.errors import ConfigError, StorageError
from mcpmix.core.stage_folder import Artifact, read_artifact
from mcpmix.data.index import DatasetIndex, load_arrays
from mcpmix.generator import synthesize
from mcpmix.generator.ledger import admitted_replicas, read_verified
from mcpmix.generator.pair_source import open_source
from mcpmix.networks.features import SmallFeatures, save_features
from mcpmix.networks.weight_files import folder_digest
from mcpmix.preflight import check
from mcpmix.run import run

ADMISSION = (
    "synthesis.admission.enabled=true",
    "synthesis.admission.tries=2",
    "synthesis.admission.judge.steps=2",
    "synthesis.admission.judge.batch_size=2",
)


@pytest.fixture(scope="module")
def made(make_config, tmp_path_factory):
    """A judged bank: of images that an untrained generator makes and an untrained judge looks at."""
    config = make_config(tmp_path_factory.mktemp("judged"), *ADMISSION)
    listener = Recorder()
    return config, run(config, listener, until="pairs").pairs, listener


def rows_of(pairs):
    return read_verified(pairs.folder, pairs.digest, pairs.manifest["counts"]["ledger"])


def test_every_place_is_filled_or_given_up_after_the_last_try(made):
    config, pairs, _ = made
    rows, counts = rows_of(pairs), pairs.manifest["counts"]
    last = {(row["parent"], row["replica"]): row for row in rows}
    assert len(last) == 4 * config.synthesis.replicas
    assert all(row["admitted"] or row["try"] == 1 for row in last.values())
    assert counts["tries"] == len(rows)
    assert counts["images"] == sum(row["admitted"] for row in rows)
    assert set(counts["thresholds"]) == {"alignment", "copy", "exposure"}
    assert 0 <= counts["scores"]["alignment_real"] <= 1
    assert all((pairs / name).is_file() for name in ("sheet.png", "alignment.png"))
    for row in rows:
        assert row["judge"] == read_artifact(config.folder / "judge").digest
        assert {"alignment", "distance_source", "distance_train", "distance_held_out"} <= row["scores"].keys()


def test_masks_without_a_counterpart_are_told_and_trained_with_their_real_image(made):
    config, pairs, listener = made
    counts = pairs.manifest["counts"]
    index = DatasetIndex.read(config.folder / "dataset")
    train = load_arrays(index.part("train"), config.data.size)
    stored = admitted_replicas(rows_of(pairs), train.ids)
    empty = [place for place, numbers in enumerate(stored) if not numbers]
    assert any("no lesion in the real images" in text for text in counts["warnings"]) == bool(
        counts["unjudgeable"]
    )
    assert counts["without"] == [train.ids[place] for place in empty]
    assert empty, "two steps of training make no judge that would admit noise"
    assert any("training uses the real image" in message for message in listener.lines)
    source = open_source(config, train, 0, lambda _: np.arange(len(train)), pairs=pairs)
    taken = source.take(1, np.arange(len(train)))
    assert all(np.array_equal(taken[place], train.images[place]) for place in empty)
    assert all(not np.array_equal(taken[p], train.images[p]) for p in range(len(train)) if p not in empty)


def test_a_damaged_image_is_named_by_check_and_made_again_to_the_same_bits(made):
    config, pairs, _ = made
    row = rows_of(pairs)[-1]
    path = pairs / row["file"]
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    problems = [str(problem) for problem in check(config).problems]
    assert any(row["file"] in problem and "mcpmix synthesize" in problem for problem in problems)
    listener = Recorder()
    assert run(config, listener, until="pairs").pairs.digest == pairs.digest
    assert path.read_bytes() == whole
    assert listener.titles == ["repairing pairs"]
    assert "1 damaged" in listener.lines[-1]
    assert "ledger and images are whole" in check(config).facts["pairs"]


def test_a_row_edited_by_hand_stops_check_and_training(made):
    config, pairs, _ = made
    path = pairs / "ledger.jsonl"
    whole = path.read_text()
    rows = whole.splitlines()
    changed = json.loads(rows[2])
    changed["admitted"] = not changed["admitted"]
    rows[2] = json.dumps(changed, ensure_ascii=False)
    path.write_text("\n".join(rows) + "\n")
    try:
        assert any("line 3" in str(problem) for problem in check(config).problems)
        with pytest.raises(StorageError, match="line 3: its content does not match its seal"):
            _ = run(config, until="pairs").pairs
    finally:
        path.write_text(whole)


def test_settings_of_an_admission_that_is_off_do_not_matter(make_config, made, tmp_path):
    config, pairs, _ = made
    generator, judge = read_artifact(config.folder / "generator"), read_artifact(config.folder / "judge")

    def digest(*overrides, judge=None):
        return synthesize.key(make_config(tmp_path, *overrides), generator, judge).digest

    assert digest() == digest("synthesis.admission.tries=7")
    assert digest() == digest("synthesis.source=on-the-fly")
    assert digest(*ADMISSION, judge=judge) == pairs.digest
    assert digest(*ADMISSION, "synthesis.admission.tries=7", judge=judge) != pairs.digest


def test_admission_of_pairs_made_in_training_is_refused(make_config, tmp_path):
    with pytest.raises(ConfigError, match="admission judges the images of a bank"):
        make_config(tmp_path, "synthesis.admission.enabled=true", "synthesis.source=on-the-fly")


def test_replaced_weights_of_the_features_are_noticed_where_they_judge(make_config, tmp_path):
    generator, judge = (Artifact(tmp_path, {"digest": name}) for name in ("generator", "judge"))

    def digests(*overrides):
        save_features(SmallFeatures((8, 8)), tmp_path / "features")  # another network each time
        folder_digest.cache_clear()  # as in another process
        config = make_config(tmp_path, f"rla.features={tmp_path / 'features'}", *overrides)
        return synthesize.key(config, generator, judge).digest

    assert digests() == digests()
    judged = "synthesis.admission.enabled=true"
    assert digests(judged) != digests(judged)
