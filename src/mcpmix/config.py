"""The sections of a configuration; no default is elsewhere.

Those of the data are in `config_data.py`, those of stage 3 in `config_training.py`.

`mcpmix init` writes the text below each field as its comment.
"""

from pathlib import Path
from string import Formatter
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from mcpmix.config_data import DataConfig
from mcpmix.config_training import (
    EditorConfig,
    EvaluationConfig,
    NaturalInt,
    PositiveFloat,
    PositiveInt,
    RLAConfig,
    Section,
    SegmenterConfig,
    Share,
    TrackConfig,
    TrainConfig,
)

PSEUDO = "pseudo"  # a start of fine-tuning


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
        # Plain fields only: {position:2000000000} would ask for two billion spaces.
        for _, name, shape, conversion in Formatter().parse(self.template):
            if name is not None and (name not in ("position", "target") or shape or conversion):
                raise ValueError(f"template may use only {{position}} and {{target}}, found {{{name}}}")
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


class AdaptConfig(Section):
    """The base learns from images without masks: the training part and data.unlabelled."""

    steps: NaturalInt = 0
    """Optimiser steps of the denoiser; 0: the base is used as it is, as in the paper."""
    unet: Literal["tiny", "small", "medium"] | None = None
    """A denoiser of this size from scratch, in place of the base's own; none: that is trained further."""
    autoencoder: str | None = None
    """Another autoencoder than the base's: local folder or hub id of an AutoencoderKL or AutoencoderTiny, as
    madebyollin/taesd; each may be pinned."""
    autoencoder_steps: NaturalInt = 0
    """Steps in which the autoencoder learns the images; AutoencoderTiny only."""
    decoder_steps: NaturalInt = 0
    """Steps in which its decoder learns sharpness from a critic."""
    lora_rank: NaturalInt | Literal["auto"] = "auto"
    """Rank of LoRA; 0: all weights learn. auto: 16 for denoisers above 200 million parameters, 0 below."""
    looks: NaturalInt = 0
    """Groups of images that look alike; the prompt names the group of each, and each counterpart is drawn in
    one of these looks. 0: none."""
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 5e-4
    ema_decay: Share = 0.999
    save_every: PositiveInt = 250
    """Steps between two checkpoints."""
    validate_every: NaturalInt = 0
    """Steps between two looks at the base: a sheet of images, and their distance (KID) to the validation
    part; 0: at the end only."""
    validation_images: int = Field(default=96, ge=3)
    """Images drawn for it."""


class GeneratorValidationConfig(Section):
    """Validation of the generator during fine-tuning, on masks of the validation part."""

    every: NaturalInt = 0
    """Steps between two validations; 0: none."""
    images: PositiveInt = 8
    """Held-out samples used for validation."""
    best_by: Literal["loss", "alignment"] = "loss"
    """How the best checkpoint is chosen: by the lowest validation loss or the highest alignment."""
    use: Literal["last", "best"] = "last"
    """Which checkpoint generates the counterparts; the other one is kept too."""

    @model_validator(mode="after")
    def _best_is_known(self) -> Self:
        if self.use == "best" and self.every == 0:
            raise ValueError("use: best needs `every`, the steps between two validations")
        return self


class FinetuneConfig(Section):
    """Stage 2: ControlNet on the frozen base."""

    start: str | None = None
    """ControlNet to start from, made for the same base: `embedded`, a local folder or a hub id, each
    optionally pinned; `pseudo`: one that first learns from unlabelled images with pseudo-masks. None: a copy
    of the base's encoder, as in the paper."""
    pseudo_steps: PositiveInt = 500
    """Steps of `start: pseudo` on pseudo-masks, before those on the labelled images."""
    steps: PositiveInt = 500
    batch_size: PositiveInt = 16
    """Images of one pass of one process; a step takes batch_size * accumulation * processes of them."""
    accumulation: PositiveInt = 1
    """Passes whose gradients are accumulated before a step: large batches in little memory."""
    processes: PositiveInt = 1
    """Processes that share a step, started with torchrun; another number of processes is refused."""
    gradient_checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, about a third more time."""
    optimiser: Literal["adamw", "adamw-8bit"] = "adamw"
    """adamw-8bit keeps the moments in 8 bits and needs the package bitsandbytes."""
    learning_rate: PositiveFloat = 1e-3
    unlock_decoder: bool = False
    """Whether the decoder of the base's UNet trains too: for images unlike anything the base has seen."""
    decoder_learning_rate: PositiveFloat = 1e-5
    """Learning rate of the unlocked decoder."""
    warmup_steps: NaturalInt = 25
    ema_decay: Share = 0.99
    condition: Literal["both", "mask", "depth"] = "both"
    """Which channels of the condition carry information; the others are zero."""
    depth_under_mask: Literal["keep", "fill"] = "keep"
    """What the depth channel shows under the mask: the lesion, as in the paper, or its surroundings
    continued, so that the mask alone says where a lesion is to be."""
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
    augment: bool = True
    """Paired flips and quarter turns of image, mask and depth."""
    colour: float = Field(default=0.0, ge=0, le=1)
    """Strength of colour variation of the training images. With few patients it keeps the ControlNet from
    memorising their colours."""
    save_every: PositiveInt = 50
    """Steps between two checkpoints."""
    validation: GeneratorValidationConfig = GeneratorValidationConfig()

    @property
    def start_weights(self) -> str | None:
        """The ControlNet to load; None if there is none to load, as with `pseudo`."""
        return None if self.start == PSEUDO else self.start

    @property
    def first_steps(self) -> int:
        """Steps on pseudo-masks, before all others."""
        return self.pseudo_steps if self.start == PSEUDO else 0


class PseudoConfig(Section):
    """Masks of unlabelled images, by the judge (synthesis.admission.judge)."""

    agreement: Share = 0.8
    """Least Dice between the networks of the judge, for the mask of an unlabelled image to be used."""


class JudgeConfig(Section):
    """Segmenters trained on real training images only, to say whether a lesion is under its mask."""

    network: str = "segformer"
    """A segmenter by name, as in the section segmenter."""
    variant: str = "nano"
    """Its size or encoder."""
    weights: str | None = None
    """What it starts from, as segmenter.weights; none: from scratch."""
    options: dict[str, Any] = Field(default={})
    """Further arguments, as segmenter.options."""
    steps: PositiveInt = 250
    """Optimiser steps of each fold's network."""
    batch_size: PositiveInt = 8
    learning_rate: PositiveFloat = 3e-3
    folds: int = Field(default=2, ge=2)
    """Networks, each trained without one part of the groups; no more than there are groups."""
    colour: Share = 1.0
    """Colour variation in training: synthetic images come in colours that the few real ones lack."""


class AdmissionConfig(Section):
    """Which counterparts are admitted to the bank (docs/pairs.md)."""

    enabled: bool = False
    """Whether counterparts are judged; off: all are kept, as in the paper."""
    tries: PositiveInt = 3
    """Most images drawn for one replica, each with the next seed. A mask whose images were all rejected is
    trained with its real image alone."""
    alignment_quantile: Share = 0.25
    """Lowest alignment, as a quantile of the judge's cross-validated Dice on real training images; never
    below what it reaches with the masks of other groups."""
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
            raise ValueError("budget is for pairs made in training: set refresh or source: on-the-fly")
        return self

    @property
    def makes_in_training(self) -> bool:
        """Whether counterparts are made while the segmenter trains."""
        return self.source == "on-the-fly" or self.refresh > 0


class FewStepsConfig(Section):
    """Counterparts in 2 to 4 passes of the networks, without guidance (docs/synthesis.md)."""

    steps: int = Field(default=0, ge=0, le=50)
    """Passes for each counterpart; 0: drawn as the section synthesis says."""
    lora: str | None = None
    """LCM-LoRA for the base, by hub id or folder, as latent-consistency/lcm-lora-sdv1-5; may be pinned. None:
    after fine-tuning, a copy of the generator learns to draw in few steps."""
    paths: PositiveInt = 384
    """Images that the generator draws for that copy to learn from, in synthesis.steps steps each."""
    distil_steps: PositiveInt = 150

    @property
    def distils(self) -> bool:
        """Whether a copy of the generator learns to draw in few steps."""
        return self.steps > 0 and self.lora is None


class RuntimeConfig(Section):
    """The machine."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps`."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs that have it, otherwise float32."""
    threads: NaturalInt = 0
    """CPU threads in all; 0: OMP_NUM_THREADS, or one per core. Trainings that run side by side share them."""
    jobs: NaturalInt = 0
    """Trainings side by side; 0: one per core on a CPU, one on a GPU."""
    deterministic: bool = True


class Config(Section):
    """A whole run."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: NaturalInt = 0
    """Root of all random streams."""
    output: Path = Path("runs")
    """Folder in which the run's folder is made."""
    data: DataConfig
    depth: DepthConfig = DepthConfig()
    generator: GeneratorConfig = GeneratorConfig()
    adapt: AdaptConfig = AdaptConfig()
    finetune: FinetuneConfig = FinetuneConfig()
    pseudo: PseudoConfig = PseudoConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    few_steps: FewStepsConfig = FewStepsConfig()
    segmenter: SegmenterConfig = SegmenterConfig()
    train: TrainConfig = TrainConfig()
    rla: RLAConfig = RLAConfig()
    editor: EditorConfig = EditorConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    track: TrackConfig = TrackConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.finetune.start == PSEUDO and not self.data.has_unlabelled:
            raise ValueError("finetune.start: pseudo needs unlabelled images: name some in data.unlabelled")
        few, learnt = self.few_steps, self.synthesis.steps
        if few.distils and few.steps > learnt:
            raise ValueError(f"few_steps.steps: {few.steps} is above synthesis.steps, {learnt}, learnt from")
        if few.lora is not None and not few.steps:
            raise ValueError("few_steps.lora does nothing without few_steps.steps: 4 is usual")
        return self

    @property
    def folder(self) -> Path:
        """Where this run's stage folders are."""
        return self.output / self.name

    def on_base(self, base: Path) -> Self:
        """The same run with another diffusion base: the adapted one."""
        return self.model_copy(update={"generator": self.generator.model_copy(update={"base": str(base)})})
