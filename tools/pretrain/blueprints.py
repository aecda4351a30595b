"""Architectures of the embedded networks, untrained.

They have the classes, the folder layout and the configuration keys of Stable Diffusion 1.5 and of DPT, at a
size that two CPU cores can train and run: images of 128 px become latents of 16x16x8.
"""

import json
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from diffusers import AutoencoderTiny, DPMSolverMultistepScheduler, UNet2DConditionModel
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    DPTConfig,
    DPTForDepthEstimation,
    DPTImageProcessor,
)

from mcpmix.core.files import written
from mcpmix.networks.diffusion import new_unet

IMAGE_SIZE = 128
LATENT_CHANNELS = 8
TEXT_WIDTH = 96
TEXT_LENGTH = 48


def build_autoencoder() -> AutoencoderTiny:
    """Eightfold down to 8 channels; 3,128,128 images in [-1, 1] become 8,16,16 latents.

    The kind without group norm: two short trainings of a small AutoencoderKL lost hue, this one did not. That
    group norm was the cause is likely, not shown (loss and KL weight differed too). No block works at full
    size, where it would cost most.
    """
    width = 32
    return AutoencoderTiny(
        encoder_block_out_channels=(width,) * 4,
        decoder_block_out_channels=(width,) * 4,
        num_encoder_blocks=(0, 1, 2, 3),
        num_decoder_blocks=(3, 2, 1, 0),
        latent_channels=LATENT_CHANNELS,
    )


def build_unet(image_size: int = IMAGE_SIZE) -> UNet2DConditionModel:
    """The denoiser for images of that side in pixels."""
    return new_unet(
        "tiny", latent_channels=LATENT_CHANNELS, text_width=TEXT_WIDTH, latent_side=image_size // 8
    )


def build_scheduler() -> DPMSolverMultistepScheduler:
    """Velocity prediction with zero terminal signal: without it, mean colour leaks into the last step.

    At 16x16 the mean of a latent channel survives the noise of Stable Diffusion's last step; a model trained
    on that copies the mean of the noise at sampling time, and all images come out in one average colour.
    """
    return DPMSolverMultistepScheduler(
        num_train_timesteps=1000,
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction",
        rescale_betas_zero_snr=True,
        timestep_spacing="trailing",
        steps_offset=1,
    )


def build_tokenizer(corpus: Iterable[str], vocabulary: int = 1024) -> CLIPTokenizer:
    """A CLIP tokenizer whose merges are learnt from `corpus`; any other text falls back to letters."""
    plain = CLIPTokenizer()
    trained = Tokenizer(BPE(unk_token=str(plain.unk_token), end_of_word_suffix="</w>"))
    trained.normalizer = plain.backend_tokenizer.normalizer
    trained.pre_tokenizer = plain.backend_tokenizer.pre_tokenizer
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[str(plain.bos_token), str(plain.eos_token)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    letters = " ".join(string.ascii_lowercase + string.digits + string.punctuation)
    trained.train_from_iterator([letters, *corpus], trainer)
    model: dict[str, Any] = json.loads(trained.to_str())["model"]
    return CLIPTokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        model_max_length=TEXT_LENGTH,
    )


def stored_tokenizer(corpus: Iterable[str], folder: Path) -> CLIPTokenizer:
    """The tokenizer in `folder`; if there is none, one is built from `corpus` and stored there.

    Each build numbers tokens anew, in the order of a hash table. A resumed training needs the numbers that
    its checkpoint was made with.
    """
    if not folder.exists():
        with written(folder) as temporary:
            build_tokenizer(corpus).save_pretrained(temporary)
    stored: CLIPTokenizer = CLIPTokenizer.from_pretrained(folder)
    return stored


def build_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """A CLIP text model for that tokenizer's vocabulary."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=TEXT_WIDTH,
            intermediate_size=2 * TEXT_WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=TEXT_LENGTH,
            projection_dim=TEXT_WIDTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def build_depth() -> tuple[DPTForDepthEstimation, DPTImageProcessor]:
    """A small DPT (near = large, as MiDaS has it) and the processor that goes with it."""
    config = DPTConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=IMAGE_SIZE,
        patch_size=16,
        num_channels=3,
        is_hybrid=False,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[32, 48, 64, 64],
        reassemble_factors=[4, 2, 1, 0.5],
        fusion_hidden_size=32,
        head_in_index=-1,
        readout_type="project",
        use_auxiliary_head=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    processor = DPTImageProcessor(
        size={"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        keep_aspect_ratio=False,
        ensure_multiple_of=1,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        resample=2,
    )
    return DPTForDepthEstimation(config), processor
