"""All of stage 2 from a folder that is laid out as Stable Diffusion 1.5 is, offline, without sockets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from safetensors import safe_open
from tools.pretrain.blueprints import build_tokenizer
from transformers import CLIPTextConfig, CLIPTextModel

from mcpmix.networks.memory import SD15

WIDTHS = [32, 32, 64, 64]
TEXT_WIDTH = 32
PROMPT = "A clinical colon endoscopic image showing a polyp lesion, realistic texture and clear boundary."

SCHEDULER = {
    "_class_name": "PNDMScheduler",
    "_diffusers_version": "0.6.0",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
}
INDEX = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": "0.6.0",
    "feature_extractor": [None, None],
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}

# Runs a configuration up to the pairs; whoever opens a socket on the way fails.
SCRIPT = """
import socket, sys

def refuse(*arguments, **settings):
    raise AssertionError("a socket was opened")

socket.socket.connect = refuse
socket.create_connection = refuse
socket.getaddrinfo = refuse

from pathlib import Path
from mcpmix.config_file import load_config
from mcpmix.run import run

print(run(load_config(Path(sys.argv[1]), ()), until="pairs").pairs.folder)
"""


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))


def save_stable_diffusion(folder):
    """Random weights under the class names, file names and configuration keys of Stable Diffusion 1.5."""
    torch.manual_seed(0)
    unet = {**SD15["unet"], "block_out_channels": WIDTHS, "cross_attention_dim": TEXT_WIDTH}
    vae = {**SD15["vae"], "block_out_channels": [32, 32, 32, 32]}
    for name, kind, config in (("unet", UNet2DConditionModel, unet), ("vae", AutoencoderKL, vae)):
        kind.from_config(config).save_pretrained(folder / name)
        # The published files have fewer keys than a newer library writes.
        write_json(folder / name / "config.json", {**config, "_diffusers_version": "0.6.0"})
    vocabulary = save_tokenizer(folder / "tokenizer")
    text = {
        **SD15["text_encoder"],
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "projection_dim": TEXT_WIDTH,
        "vocab_size": vocabulary,
    }
    CLIPTextModel(CLIPTextConfig.from_dict(text)).save_pretrained(folder / "text_encoder")
    write_json(folder / "text_encoder" / "config.json", text)
    write_json(folder / "scheduler" / "scheduler_config.json", SCHEDULER)
    write_json(folder / "model_index.json", INDEX)


def save_tokenizer(folder):
    """vocab.json and merges.txt, as the published tokenizer has them; the size of the vocabulary."""
    tokenizer = build_tokenizer([PROMPT], 400)
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    write_json(folder / "vocab.json", model["vocab"])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    marks = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    write_json(folder / "special_tokens_map.json", {**marks, "pad_token": "<|endoftext|>"})
    settings = {"model_max_length": 77, "tokenizer_class": "CLIPTokenizer", "pad_token": "<|endoftext|>"}
    write_json(folder / "tokenizer_config.json", {**marks, **settings, "do_lower_case": True})
    return len(model["vocab"])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stable-diffusion")
    save_stable_diffusion(folder)
    return folder


def test_the_folder_has_the_published_files(base):
    weights = sorted(path.relative_to(base).as_posix() for path in base.rglob("*.safetensors"))
    assert weights == [
        "text_encoder/model.safetensors",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/diffusion_pytorch_model.safetensors",
    ]
    assert not list(base.rglob("tokenizer.json"))


def test_stage_two_runs_from_it_offline_and_without_sockets(base, random_models, tmp_path):
    config = {
        "preset": "demo-fast",
        "name": "sd",
        "output": str(tmp_path / "runs"),
        "data": {
            "size": 64,
            "phantom": {
                "train_patients": 1,
                "validation_patients": 1,
                "test_patients": 1,
                "frames_per_patient": 2,
                "test_frames_per_patient": 1,
            },
        },
        "depth": {"model": str(random_models / "depth")},
        "generator": {"base": str(base)},
        "finetune": {
            "start": None,
            "steps": 3,
            "batch_size": 1,
            "warmup_steps": 1,
            "save_every": 2,
            "augment": False,
            "colour": 0,
        },
        "synthesis": {"replicas": 2, "steps": 2, "batch_size": 2, "guidance": 2.0, "appearance": []},
        "runtime": {"threads": 1, "jobs": 1, "device": "cpu"},
    }
    write_json(tmp_path / "config.yaml", config)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty-hub")}
    source = str(Path(__file__).parents[2] / "src")
    environment["PYTHONPATH"] = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "config.yaml")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pairs = tmp_path / "runs" / "sd" / "pairs"
    assert done.stdout.splitlines()[-1] == str(pairs)
    assert len(list(pairs.rglob("*.png"))) >= 2 * 2  # two masks, two counterparts each
    control = next((tmp_path / "runs" / "sd" / "generator").rglob("controlnet/*.safetensors"))
    with safe_open(control, framework="pt") as file:
        first = file.get_tensor("controlnet_cond_embedding.conv_in.weight")
        zero = file.get_tensor("controlnet_mid_block.weight")
    assert first.shape == (16, 2, 3, 3)
    assert zero.abs().max() > 0  # it has learnt something
