import re

import pytest
import torch
from tests.unit.test_preflight import phantom_config

from mcpmix.estimates import estimate_bytes
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
