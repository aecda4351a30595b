"""Looking at the generator while it learns."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from tests.helpers.progress import Recorder

from mcpmix.config import GeneratorValidationConfig
from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ConfigError
from mcpmix.core.stage_folder import Artifact
from mcpmix.core.training import JsonLines
from mcpmix.generator import finetune
from mcpmix.generator.judge import load_judge
from mcpmix.generator.validation import (
    HeldOut,
    Validator,
    best_of,
    exported_step,
    swap_alignment,
    validations,
)
from mcpmix.networks.diffusion import NoiseSchedule
from mcpmix.run import run


@pytest.fixture(scope="module")
def validated(make_config, tmp_path_factory):
    """A run of two steps, validated after each, and the parts of the data set that it read."""
    config = make_config(
        tmp_path_factory.mktemp("validated"),
        "finetune.validation.every=1",
        "finetune.validation.images=2",
        "finetune.validation.use=best",
        "finetune.condition=mask",
        "finetune.save_every=50",
    )
    load, read = finetune.load_arrays, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            finetune, "load_arrays", lambda rs, *rest: read.extend(r.split for r in rs) or load(rs, *rest)
        )
        return run(config, until="generator").generator, read


def test_each_validation_leaves_a_row_and_a_grid(validated):
    artifact, _ = validated
    rows = validations(JsonLines(artifact / "log.jsonl"))

    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert len(row["buckets"]) == 5
        assert row["loss"] == pytest.approx(np.mean(row["buckets"]), rel=1e-4)
        assert -1 <= row["alignment"] <= 1
        assert row["alignment_by"] == "swap"
        with Image.open(artifact / row["grid"]) as grid:
            assert grid.size == (5 * 64, 2 * 64)


@pytest.mark.parametrize("way", ["keep", "fill"])
def test_a_batch_holds_each_sample_at_the_middle_of_each_bucket(make_config, tmp_path, way):
    class Networks:
        schedule = NoiseSchedule(torch.linspace(0.9, 0.1, 1000), "epsilon")

    config = make_config(tmp_path, "finetune.validation.every=1", f"finetune.depth_under_mask={way}")
    masks = torch.eye(8).expand(3, 8, 8)
    held_out = HeldOut(("a", "b", "c"), None, torch.arange(3.0).view(3, 1, 1, 1), masks, 0.5 * masks)
    validator = Validator(Networks, held_out, torch.ones(1, 2, 5), config, tmp_path, None)
    whole, part = validator._batch(torch.arange(15)), validator._batch(torch.tensor([6]))

    assert whole.t.tolist() == [100, 300, 500, 700, 900] * 3
    assert whole.clean.flatten().tolist() == [0.0] * 5 + [1.0] * 5 + [2.0] * 5
    assert len(set(whole.noise.flatten().tolist())) == 15
    assert torch.equal(whole.shown[0, 0], masks[0])
    assert torch.equal(whole.shown[0, 1], 0.5 * masks[0]) == (way == "keep")
    assert torch.equal(part.noise[0], whole.noise[6])  # whatever batch it is in
    assert part.text.shape == (1, 2, 5)


def test_no_test_image_is_read(validated):
    assert set(validated[1]) == {"train", "validation"}


def test_best_and_last_are_kept_and_the_manifest_says_which_is_used(validated):
    artifact, _ = validated
    counts = artifact.manifest["counts"]
    rows = validations(JsonLines(artifact / "log.jsonl"))
    best = min(rows, key=lambda row: row["loss"])

    assert counts["used"] == "best"
    assert counts["best"] == best
    assert counts["last"]["step"] == 2
    assert exported_step(artifact / "controlnet") == best["step"]
    assert (artifact / "controlnet-last" / "diffusion_pytorch_model.safetensors").exists()
    assert not (artifact / "checkpoint.safetensors").exists()


class Weights:
    """Stands for networks: its weights are one text."""

    def __init__(self, text):
        self.text = text

    def save(self, folder):
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_text(self.text)


@pytest.fixture
def validator(make_config, tmp_path):
    """A validator whose looks are read from a list."""
    config = make_config(tmp_path, "finetune.steps=7", "finetune.validation.every=2")
    made = Validator(Weights("first"), None, None, config, tmp_path, None)
    made.found = {2: 5.0, 4: 3.0, 6: 4.0, 7: 3.5}
    made._look = lambda step: {"loss": made.found[step], "alignment": 0.0}
    return made


def test_the_best_is_exported_when_it_comes(validator, tmp_path):
    for step in range(1, 8):
        validator.networks = Weights(f"after {step}")
        validator(step)
    assert [row["step"] for row in validations(validator.log)] == [2, 4, 6, 7]
    assert exported_step(tmp_path / "controlnet-best") == 4
    assert (tmp_path / "controlnet-best" / "weights").read_text() == "after 4"


def test_called_again_after_a_kill_it_repeats_nothing_and_misses_nothing(validator, tmp_path):
    validator.networks = Weights("after 2")
    validator(2)
    validator.log.append(step=4, validation=validator._look(4))  # killed before the export
    validator._look = None
    validator.networks = Weights("after 4")
    validator(4)
    validator(4)
    assert len(validations(validator.log)) == 2
    assert (tmp_path / "controlnet-best" / "weights").read_text() == "after 4"


@pytest.mark.parametrize(("use", "other"), [("last", "best"), ("best", "last")])
def test_either_checkpoint_can_be_used(make_config, tmp_path, use, other):
    config = make_config(tmp_path, "finetune.validation.every=2", f"finetune.validation.use={use}")
    validator = Validator(Weights("last"), None, None, config, tmp_path, None)
    validator.log.append(step=2, validation={"loss": 1.0})
    Weights("best").save(tmp_path / "controlnet-best")
    validator.save_result()
    assert validator.save_result()["used"] == use  # once more, after a kill
    assert (tmp_path / "controlnet" / "weights").read_text() == use
    assert (tmp_path / f"controlnet-{other}" / "weights").read_text() == other


def test_what_is_best():
    rows = [{"step": 1, "loss": 2.0, "alignment": 0.1}, {"step": 2, "loss": 2.0, "alignment": 0.3}]
    assert best_of(rows, GeneratorValidationConfig())["step"] == 1
    assert best_of(rows, GeneratorValidationConfig(best_by="alignment"))["step"] == 2


def test_the_best_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="use: best needs `every`"):
        resolve_config({"preset": "tiny"}, ["finetune.validation.use=best"])


def test_swapping_masks_by_hand():
    masks, others = torch.zeros(4, 4, 4), torch.zeros(4, 4, 4)
    masks[:, :2], others[:, :, :2] = 1, 1
    differ = (masks != others).float()[:, None].expand(-1, 3, -1, -1)
    own = torch.full((4, 3, 4, 4), 0.5)
    moved = torch.stack([own[0] + 0.2 * differ[0], own[1] - 0.1 * (1 - differ[1]), own[2], own[3]])
    others[3] = masks[3]
    moved[3, :, 0] += 0.3

    # where the masks differ; where they do not; nowhere; masks that are equal
    assert swap_alignment(own, moved, masks, others) == pytest.approx([1.0, -1.0, 0.0, 0.0])


def test_a_judge_takes_the_place_of_the_swap_and_sees_pixels(validator):
    class Held:
        masks, other_masks = torch.ones(2, 4, 4), torch.zeros(2, 4, 4)

    class Judge:
        def __init__(self):
            self.seen = []

        def dice(self, images, masks, groups=None):
            self.seen.append((images, masks, groups))
            return np.array([0.25, 0.5]) * masks.mean()

    validator.held_out, validator.judge = Held(), Judge()
    own = torch.zeros(2, 3, 4, 4)
    own[1, 2, 0, 1] = 0.499
    assert validator._alignment(own, torch.ones(2, 3, 4, 4)) == pytest.approx(0.75 / 4)
    (pixels, masks, groups), (others, other_masks, _) = validator.judge.seen
    assert pixels.dtype == masks.dtype == np.uint8
    assert pixels.shape == (2, 4, 4, 3)
    assert pixels[1, 0, 1].tolist() == [0, 0, 127]
    assert others.min() == 255
    assert masks.min() == 1
    assert other_masks.max() == 0
    assert groups is None  # groups of the validation part are strangers to all of its networks


ADMISSION = (
    "synthesis.admission.enabled=true",
    "synthesis.admission.judge.steps=2",
    "synthesis.admission.judge.batch_size=2",
)


def test_with_admission_the_judge_is_made_first_and_asked(make_config, tmp_path):
    config = make_config(
        tmp_path,
        *ADMISSION,
        "finetune.validation.every=2",
        "finetune.validation.images=1",
        "finetune.condition=mask",
    )
    asked = []

    def judge(folder, device, **options):
        assert folder == config.folder / "judge"
        assert finetune.read_artifact(folder) is not None
        asked.append(folder)
        return load_judge(folder, device, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetune, "load_judge", judge)
        generator = run(config, until="generator").generator
    (row,) = validations(JsonLines(generator / "log.jsonl"))
    assert row["alignment_by"] == "judge"
    assert 0 <= row["alignment"] <= 1
    assert len(asked) == 1

    # Another judge means no other generator, unless it chose the weights.
    other = resolve_with(config, judge_steps=3)
    assert run(other, until="generator").generator.digest == generator.digest


def resolve_with(config, judge_steps):
    admission = config.synthesis.admission
    judge = admission.judge.model_copy(update={"steps": judge_steps})
    synthesis = config.synthesis.model_copy(
        update={"admission": admission.model_copy(update={"judge": judge})}
    )
    return config.model_copy(update={"synthesis": synthesis})


@pytest.mark.parametrize(
    ("overrides", "part_of_it"),
    [
        (("finetune.validation.best_by=alignment", "finetune.validation.every=1", *ADMISSION), True),
        (("finetune.validation.best_by=alignment", *ADMISSION), False),  # nothing is validated
        (("finetune.validation.every=1", *ADMISSION), False),  # the loss chooses
    ],
)
def test_the_judge_is_part_of_the_key_where_it_chooses_weights(make_config, tmp_path, overrides, part_of_it):
    config = make_config(tmp_path, *overrides)
    inputs = [Artifact(tmp_path, {"digest": name}) for name in ("dataset", "depth", "judge")]
    assert finetune.key(config, *inputs[:2]).inputs == {"dataset": "dataset", "depth": "depth"}
    assert finetune.key(config, *inputs).inputs.get("judge") == ("judge" if part_of_it else None)


def test_an_empty_validation_part_is_said(make_config, tmp_path, monkeypatch):
    config = make_config(tmp_path, "finetune.validation.every=1", "finetune.steps=1")
    index = run(config, until="dataset").dataset / "index.json"
    rows = json.loads(index.read_text())
    rows["samples"] = [row for row in rows["samples"] if row["split"] != "validation"]
    index.write_text(json.dumps(rows))
    monkeypatch.setattr("mcpmix.core.stage_folder.verify", lambda *_: None)  # it would find that out

    recorder = Recorder()
    assert run(config, recorder, until="generator").generator.manifest["counts"]["used"] == "last"
    assert any("validation part is empty" in message for message in recorder.lines)
