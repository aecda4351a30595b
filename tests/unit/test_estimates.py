import re

import pytest
import torch
from tests.unit.test_preflight import phantom_config

from mcpmix.core.device import setup
from mcpmix.estimates import estimate_bytes, seconds_left, time_text
from mcpmix.networks.memory import build_meta, parameter_count, pipeline_configs
from mcpmix.networks.segmenter import build_segmenter
from mcpmix.preflight import check


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


def test_memory_of_a_network_that_needs_numbers_is_unknown(tmp_path, monkeypatch):
    class Peeking(torch.nn.Conv2d):
        def forward(self, images):
            return super().forward(images) * float(images.mean())

    monkeypatch.setattr("mcpmix.estimates.build_segmenter", lambda *_, **__: Peeking(3, 1, 1))
    facts = check(phantom_config(tmp_path)).facts
    assert facts["train"].startswith("memory unknown: a step without numbers failed")


def test_time_is_measured_for_every_long_stage_and_not_for_short_runs(tmp_path, random_models):
    paired = ("train.arms=[full-sup, mcpmix]", "data.size=32", "train.batch_size=2", "finetune.batch_size=2",
              f"generator.base={random_models / 'pipeline'}", "finetune.start=null")  # fmt: skip
    config = phantom_config(tmp_path, *paired, "segmenter.weights=null")
    runtime = setup("cpu", "float32", 1, deterministic=True)
    state = torch.random.get_rng_state()
    found = seconds_left(config, {"train": 24}, runtime)
    assert list(found) == ["generator", "pairs", "segmenter"]
    assert all(value > 0 for value in found.values())
    assert torch.equal(state, torch.random.get_rng_state())  # the run draws what it would have drawn
    twice = seconds_left(config, {"train": 48}, runtime)
    assert twice["segmenter"] > 1.2 * found["segmenter"]
    short = phantom_config(tmp_path, "train.epochs=2")
    assert seconds_left(short, {"train": 24}, runtime) == {}


def test_time_in_words():
    text = time_text({"generator": 300.0, "pairs": 45.0, "segmenter": 7200.0})
    assert text.startswith("about 2.1 h in all (generator 5 min, pairs 45 s, segmenter 2.0 h)")
