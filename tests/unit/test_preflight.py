import re

import pytest
import torch

from mcpmix.config_file import resolve_config
from mcpmix.core.errors import ConfigError, ModelError, StorageError
from mcpmix.networks.memory import build_meta, parameter_count, pipeline_configs
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.preflight import check, estimate_bytes, require_settings


def phantom_config(tmp_path, *overrides):
    tree = {"preset": "tiny", "output": str(tmp_path / "runs"), "train": {"arms": ["full-sup"]}}
    return resolve_config(tree, overrides)


def test_a_phantom_needs_no_files(tmp_path):
    result = check(phantom_config(tmp_path))
    assert result.problems == []
    assert result.exit_code == 0
    assert result.facts["data"].startswith("phantom; 4 patients for train")
    assert list(tmp_path.iterdir()) == []


def test_a_size_that_the_phantom_cannot_draw(tmp_path):
    result = check(phantom_config(tmp_path, "data.size=1"))
    assert [problem.exit_code for problem in result.problems] == [3]


def test_the_gravest_problem_decides(tmp_path):
    (tmp_path / "runs").write_text("a file")
    storage = check(phantom_config(tmp_path))
    assert [type(problem) for problem in storage.problems] == [StorageError]
    assert storage.exit_code == 5
    both = check(phantom_config(tmp_path, "train.arms=[nothing]", "depth.model=/nowhere"))
    assert {type(problem) for problem in both.problems} >= {StorageError, ModelError, ConfigError}
    assert both.exit_code == 2


def test_weights_are_looked_at_only_where_an_arm_needs_them(tmp_path):
    settings = ("depth.model=/nowhere", "generator.base=/no-base", "rla.features=/no-features")
    require_settings(phantom_config(tmp_path, *settings))
    with pytest.raises(ModelError) as caught:
        require_settings(phantom_config(tmp_path, *settings, "train.arms=[mcpmix]"))
    assert "depth.model: No weights for '/nowhere'" in str(caught.value)
    assert "generator.base: No weights for '/no-base'" in str(caught.value)
    assert "rla.features" not in str(caught.value)
    with pytest.raises(ModelError, match=r"rla\.features: .*/no-features"):
        require_settings(phantom_config(tmp_path, *settings, "train.arms=[mcpmix-rla]"))


def test_incomplete_weights_are_named(tmp_path):
    (tmp_path / "base" / "unet").mkdir(parents=True)
    settings = (f"generator.base={tmp_path / 'base'}", f"depth.model={tmp_path}", "train.arms=[mcpmix]")
    with pytest.raises(ModelError) as caught:
        require_settings(phantom_config(tmp_path, *settings))
    assert "is not a complete pipeline: vae, text_encoder, tokenizer, scheduler missing" in str(caught.value)
    assert "is not a complete depth: config.json missing" in str(caught.value)


def test_an_encoder_that_reads_numbers_while_it_is_built(tmp_path):
    settings = ("segmenter.name=unet", "segmenter.variant=mit_b0", "segmenter.weights=null")
    assert "5.5 million parameters" in check(phantom_config(tmp_path, *settings)).facts["segmenter"]


def test_segmenter_weights_must_be_here(tmp_path):
    with pytest.raises(ModelError, match=r"segmenter\.weights: No weights for .nobody/nothing"):
        require_settings(phantom_config(tmp_path, "segmenter.weights=nobody/nothing"))


def test_arms_that_need_unlabelled_images_say_so_before_anything_runs(tmp_path, random_models):
    arms = "train.arms=[full-sup, pseudo-label, mean-teacher]"
    with pytest.raises(ConfigError) as caught:
        require_settings(phantom_config(tmp_path, arms))
    named = re.findall(r"(\S+) trains on unlabelled images; name some in data\.unlabelled", str(caught.value))
    assert named == ["pseudo-label", "mean-teacher"]
    more = (f"data.unlabelled={tmp_path}", "finetune.start=pseudo", f"depth.model={random_models / 'depth'}")
    base = f"generator.base={random_models / 'pipeline'}"
    require_settings(phantom_config(tmp_path, *more, base, "train.arms=[mean-teacher, mcpmix]"))


def test_estimate_of_a_run_without_pairs(tmp_path):
    config = phantom_config(tmp_path, "train.seeds=[0]", "data.size=64")
    network = build_segmenter("segformer", "nano")
    weights = 4 * sum(parameter.numel() for parameter in network.parameters())
    tested = 12 * 4 + 4 * 12  # of unseen and of known patients
    frames = (4 + 2) * 6 + tested
    # The result, two checkpoints of four tensors each; masks at one bit; frames at 2.5 bytes per pixel;
    # training and validation frames with their masks decoded.
    expected = 9 * weights + tested * 64**2 / 8 + frames * 64**2 * 2.5 + (24 + 12) * 64**2 * 4
    assert estimate_bytes(config) == pytest.approx(expected)


def test_estimate_of_a_run_with_pairs(tmp_path, random_models):
    paired = ("train.arms=[mcpmix]", f"generator.base={random_models / 'pipeline'}", "data.size=64")
    control = build_meta(pipeline_configs(str(random_models / "pipeline"))).control
    stored = estimate_bytes(phantom_config(tmp_path, *paired))
    moving = estimate_bytes(phantom_config(tmp_path, *paired, "synthesis.source=on-the-fly"))
    assert stored - moving == pytest.approx(24 * 8 * 64**2 * 2.5)  # 24 frames, 8 replicas
    plain = estimate_bytes(phantom_config(tmp_path, "data.size=64"))
    assert moving - plain == pytest.approx(2 * 4 * 4 * parameter_count(control) + 24 * 64**2 * 2)


def test_memory_of_the_stages_is_known_without_weights(tmp_path):
    overrides = (
        "generator.base=stable-diffusion-v1-5/stable-diffusion-v1-5",
        "train.arms=[mcpmix]",
        "data.size=64",
        "finetune.batch_size=1",
        "finetune.gradient_checkpointing=true",
        "runtime.precision=bfloat16",
    )
    facts = check(phantom_config(tmp_path, *overrides)).facts
    # 859.5 M frozen at 2 bytes; 361.3 M at 4 + 2 for the copy + 4 gradient + 8 moments + 4 average
    fixed = (859_520_964 * 2 + 361_278_976 * 22) / 1e9
    found = re.match(r"about ([0-9.]+) GB at 64 px with gradient checkpointing, batch 1", facts["finetune"])
    assert found, facts["finetune"]
    assert fixed < float(found[1]) < fixed + 1
    assert facts["synthesize"].startswith("about ")
    assert facts["train"].startswith("about ")


def test_wrong_settings_are_said_once_and_not_as_unknown_memory(tmp_path):
    result = check(phantom_config(tmp_path, "segmenter.name=unet", "segmenter.variant=nano"))
    assert any("segmenter.variant" in str(problem) for problem in result.problems)
    assert "train" not in result.facts


def test_memory_of_a_network_that_needs_numbers_is_unknown(tmp_path, monkeypatch):
    class Peeking(torch.nn.Conv2d):
        def forward(self, images):
            return super().forward(images) * float(images.mean())

    monkeypatch.setattr("mcpmix.preflight.build_segmenter", lambda *_, **__: Peeking(3, 1, 1))
    facts = check(phantom_config(tmp_path)).facts
    assert facts["train"].startswith("memory unknown: a step without numbers failed")


def test_a_start_that_does_not_fit_is_told_before_anything_runs(tmp_path, random_models):
    paired = ("train.arms=[mcpmix]", f"generator.base={random_models / 'pipeline'}")
    assert check(phantom_config(tmp_path, *paired)).facts["control"].startswith("embedded; licence")
    missing = check(phantom_config(tmp_path, *paired, "finetune.start=/nowhere")).problems
    assert ["finetune.start: " in str(problem) for problem in missing] == [True]
    foreign = f"finetune.start={random_models / 'pipeline' / 'unet'}"
    (problem,) = check(phantom_config(tmp_path, *paired, foreign)).problems
    assert "finetune.start: " in str(problem)
    assert "a network of class UNet2DConditionModel" in str(problem)
