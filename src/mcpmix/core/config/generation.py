"""The sections `depth`, `generator`, `finetune` and `synthesis`: stages 1 and 2, and the pairs they make."""

from typing import Literal, Self

from pydantic import Field, model_validator

from mcpmix.core.config.section import NaturalInt, PositiveFloat, PositiveInt, Section, Share


class DepthConfig(Section):
    """Stage 1: a frozen depth network, once per training image."""

    model: str = "embedded"
    """`embedded`, a local folder or a hub id of any AutoModelForDepthEstimation; each may be pinned with
    `@sha256:<digest>` (`mcpmix models digest` prints it)."""
    batch_size: PositiveInt = 16
    near: Literal["auto", "large", "small"] = "auto"
    """Whether the network gives near things large values (MiDaS, DPT) or small ones (metric depth); auto: as
    its configuration says."""


class PromptConfig(Section):
    """The text condition."""

    template: str = (
        "A clinical {position} endoscopic image showing a {target} lesion, "
        "realistic texture and clear boundary."
    )
    position: str = "colon"
    """Imaging position, e.g. colon, gastric, nasal."""
    target: str = "polyp"
    """What the lesion is."""

    @model_validator(mode="after")
    def _known_fields(self) -> Self:
        try:
            self.template.format(position="", target="")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"template may use only {{position}} and {{target}}: {error!r}") from error
        return self

    @property
    def text(self) -> str:
        """The prompt with its fields filled in."""
        return self.template.format(position=self.position, target=self.target)


class GeneratorConfig(Section):
    """The diffusion model that stage 2 fine-tunes a ControlNet for."""

    base: str = "embedded"
    """`embedded`, a local pipeline folder or a hub id, e.g. stable-diffusion-v1-5/stable-diffusion-v1-5."""
    prompt: PromptConfig = PromptConfig()


class GeneratorValidationConfig(Section):
    """Looks at the generator while it learns, on masks of the validation part."""

    every: NaturalInt = 0
    """Steps between two looks; 0: none."""
    images: PositiveInt = 8
    """Held-out samples that are looked at."""
    buckets: PositiveInt = 5
    """Ranges of timesteps whose loss is given apart."""
    best_by: Literal["loss", "alignment"] = "loss"
    """What makes the best checkpoint: the lowest validation loss or the highest alignment."""
    use: Literal["last", "best"] = "last"
    """Which checkpoint makes the counterparts; the other one is kept beside it."""

    @model_validator(mode="after")
    def _best_is_known(self) -> Self:
        if self.use == "best" and self.every == 0:
            raise ValueError("use: best needs `every`, the steps between two validations")
        return self


class FinetuneConfig(Section):
    """Stage 2: ControlNet on the frozen base."""

    start: str | None = None
    """ControlNet to start from, made for the same base: `embedded`, a local folder or a hub id, each perhaps
    pinned. None: a copy of the base's encoder, as in the paper."""
    steps: PositiveInt = 500
    batch_size: PositiveInt = 16
    """Images of one pass of one process; a step takes batch_size * accumulation * processes of them."""
    accumulation: PositiveInt = 1
    """Passes whose gradients are added up before a step: large batches in little memory."""
    processes: PositiveInt = 1
    """Processes that share a step, started with torchrun; another number of processes is refused."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, about a third more time."""
    optimiser: Literal["adamw", "adamw-8bit"] = "adamw"
    """adamw-8bit keeps the moments in 8 bits and needs the package bitsandbytes."""
    learning_rate: PositiveFloat = 1e-3
    unlock_decoder: bool = False
    """Whether the decoder of the base's UNet trains too: for images unlike all that the base has seen."""
    decoder_learning_rate: PositiveFloat = 1e-5
    """Learning rate of the unlocked decoder."""
    warmup_steps: NaturalInt = 25
    ema_decay: Share = 0.99
    condition: Literal["both", "mask", "depth"] = "both"
    """Which channels of the condition carry information; the others are zero."""
    depth_under_mask: Literal["keep", "fill"] = "keep"
    """What the depth channel shows under the mask: the lesion, as in the paper, or the continuation of its
    surroundings, so that where a lesion is to be comes from the mask alone."""
    mask_dropout: Share = 0.0
    """Share of samples whose mask channel is blanked in training."""
    depth_dropout: Share = 0.1
    """Share of samples whose depth channel is blanked in training."""
    prompt_dropout: Share = 0.1
    """Share of samples trained without text, for guidance."""
    min_snr_gamma: float = 5.0
    """Clip of the signal-to-noise weighting; 0 switches it off."""
    lesion_weight: float = Field(default=1.0, ge=1)
    """How much more an error under the mask counts. Lesions are a small part of an image: with few steps a
    generator learns everything else first."""
    embedding_channels: tuple[PositiveInt, ...] = (16, 32, 96, 256)
    """Widths of the condition embedding; the last four make the eightfold down-sampling. A `start` has its
    own."""
    augment: bool = True
    """Paired flips and quarter turns of image, mask and depth."""
    colour: float = Field(default=0.0, ge=0, le=1)
    """Strength of colour variation of the training images. With few patients it keeps the ControlNet from
    learning their colours by heart: it learns the layout, and colour stays the base's business."""
    save_every: PositiveInt = 50
    """Steps between two checkpoints."""
    validation: GeneratorValidationConfig = GeneratorValidationConfig()


class JudgeConfig(Section):
    """Segmenters trained on real training images only, to say whether a lesion is under its mask."""

    network: str = "segformer"
    """A segmenter by name, as in the section segmenter."""
    variant: str = "nano"
    """Its size or encoder."""
    weights: str | None = None
    """What it starts from, as segmenter.weights; none: from scratch."""
    steps: PositiveInt = 250
    """Optimiser steps of each fold's network."""
    batch_size: PositiveInt = 8
    learning_rate: PositiveFloat = 3e-3
    folds: int = Field(default=2, ge=2)
    """Networks, each trained without one part of the groups; no more than there are groups."""
    colour: Share = 1.0
    """Colour variation in training: synthetic images come in colours that the few real ones lack."""


class AdmissionConfig(Section):
    """Which counterparts come into the bank (docs/pairs.md)."""

    enabled: bool = False
    """Whether counterparts are judged; off: all are kept, as in the paper."""
    tries: PositiveInt = 3
    """Images drawn for one replica at most, each with the next seed. A mask all of whose images were rejected
    is trained with its real image alone."""
    alignment_quantile: Share = 0.25
    """Lowest alignment, as a quantile of the judge's cross-validated Dice on real training images; never
    below what it reaches with the masks of other groups."""
    alignment_floor: Share = 0.1
    """Lowest alignment, whatever the judge reaches on real images."""
    copy_quantile: Share = 0.95
    """Share of near-duplicates of real images that the copy check is to find, as long as it takes no more
    than one in a hundred real images of other groups for copies. 0: no image is a copy."""
    exposure_tolerance: Share = 0.5
    """How far beyond the extremes of the real images brightness and contrast may go; 1: anywhere."""
    judge: JudgeConfig = JudgeConfig()


class SynthesisConfig(Section):
    """Synthetic counterparts under the masks of the training images."""

    replicas: PositiveInt = 4
    """Counterparts per mask (K) in the bank."""
    steps: PositiveInt = 12
    """Denoising steps of DPM-Solver++."""
    guidance: float = Field(default=1.5, ge=1)
    """Classifier-free guidance; 1 switches it off and halves the cost."""
    mask_guidance: float = Field(default=1.0, ge=1)
    """Guidance towards the mask: above 1, lesions come out more distinctly; one more pass per step."""
    control_scale: PositiveFloat = 1.0
    """Weight of the ControlNet's residuals."""
    strength: float = Field(default=1.0, gt=0, le=1)
    """1: from pure noise, as the paper; below 1: from the noised latents of the source image."""
    batch_size: PositiveInt = 16
    appearance: tuple[str, ...] = ()
    """Texts of which one, drawn by the seed, is added to each prompt; varies what the base knows about."""
    source: Literal["bank", "on-the-fly"] = "bank"
    """`bank`: stored once, one replica drawn per epoch; `on-the-fly`: new images each epoch."""
    refresh: Share = 0.0
    """With `bank`: share of the masks that get a new counterpart each epoch, in place of a stored one."""
    budget: bool = False
    """Make fewer new counterparts as s and rho fall: the share of samples that get one in an epoch follows
    s * rho of two epochs before, relative to the first; the others keep theirs (docs/synthesis.md)."""
    workers: PositiveInt = 1
    """Processes that make counterparts while the segmenter trains, with one CPU thread each. Results do not
    depend on it."""
    ahead: PositiveInt = 8
    """Batches of counterparts that may be made before training needs them. Results do not depend on it."""
    admission: AdmissionConfig = AdmissionConfig()

    @model_validator(mode="after")
    def _makes_something(self) -> Self:
        if self.admission.enabled and self.makes_in_training:
            raise ValueError(
                "admission judges the images of a bank: pairs made in training (source: on-the-fly, refresh) "
                "would pass unseen. Use source: bank with refresh: 0, or set admission.enabled=false"
            )
        if self.refresh > 0 and self.source != "bank":
            raise ValueError("refresh is for source: bank; on-the-fly makes new counterparts anyway")
        if self.budget and self.source == "bank" and self.refresh == 0:
            raise ValueError(
                "budget is for pairs made in training: set refresh above 0 or source: on-the-fly"
            )
        return self

    @property
    def makes_in_training(self) -> bool:
        """Whether counterparts are made while the segmenter trains."""
        return self.source == "on-the-fly" or self.refresh > 0
