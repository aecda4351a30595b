"""The sections of stage 3 (network, training, RLA, evaluation, logs), and what all sections are made of.

Defaults are defined here and in `config.py`, and nowhere else.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Share = Annotated[float, Field(ge=0, le=1)]
PositiveInt = Annotated[int, Field(gt=0, lt=2**63)]
NaturalInt = Annotated[int, Field(ge=0, lt=2**63)]
PositiveFloat = Annotated[float, Field(gt=0)]

# Of DiffuseMix; one image is edited into each of them.
_LOOKS = (
    *("autumn", "snowy", "watercolor art", "sunset", "rainbow", "aurora", "mosaic", "ukiyo-e"),
    "a sketch with crayon",
)


class Section(BaseModel):
    """Base of all sections: frozen, strict about keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class SegmenterConfig(Section):
    """The network of stage 3."""

    name: str = "segformer"
    """segformer, unet, deeplabv3plus, segnet, or package.module:ClassName of an own network."""
    variant: str = "b0"
    """segformer: nano (for CPUs), b0 ... b5; unet, deeplabv3plus: encoder, as resnet18; segnet: vgg16."""
    weights: str | None = None
    """Hub id or local folder (segformer), or file of encoder or network weights; none: from scratch."""
    options: dict[str, Any] = Field(default={})
    """Further arguments of unet and deeplabv3plus, as `{decoder_channels: [64, 48, 32, 24, 16]}`."""


class RLAConfig(Section):
    """Real-anchored learnable annealing and the fixed mixing arms."""

    s_max: float = Field(default=0.7, gt=0, le=1)
    rho_max: float = Field(default=0.5, gt=0, le=1)
    mu: float = Field(default=1.0, ge=0)
    """Weight of the discrepancy above its margin."""
    tau0: PositiveFloat | Literal["auto"] = "auto"
    """Margin at the start; auto: mean discrepancy over an epoch with shares as in training at s = s_max."""
    lambda_s: float = Field(default=1e-3, ge=0)
    lambda_rho: float = Field(default=1e-3, ge=0)
    controller: Literal["network", "scalar"] = "network"
    gate_learning_rate: PositiveFloat | Literal["auto"] = "auto"
    """auto: total possible travel of about 3.5 logits over the run."""
    spread: Share = 0.0
    """Half-width of the samples' shares around s, relative to s: 0, all take s (paper); 1, from U[0, 2s]."""
    s_prior_max: Share | None = None
    """Prior of s at the start, from which it falls to 0 at T; none: s_max."""
    rho_prior_max: Share | None = None
    """Prior of rho at the start; none: rho_max."""
    mmd_every: PositiveInt = 1
    """Evaluate the discrepancy on every k-th step."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Of the running mean of the discrepancy, which the margin limits; 0: that of each batch (paper)."""
    root: bool = False
    """Whether the discrepancy is the MMD instead of its square."""
    bandwidths: tuple[PositiveFloat, ...] = Field(default=(1.0,), min_length=1)
    """Kernels of the MMD, as multiples of the median distance; their mean is taken."""
    features: str = "embedded"
    """phi: `embedded`, `resnet50` (torchvision, IMAGENET1K_V2) or a safetensors file of one."""
    fixed_rho: Share = 0.25
    """Loss weight of mixed images in the arms without learnable gates."""


class EditorConfig(Section):
    """Edits of the training images by instruction, for the arm diffusemix."""

    model: str | None = None
    """Hub id or local folder of an InstructPix2Pix pipeline, as timbrooks/instruct-pix2pix; none: diffusemix
    takes the counterparts of the generator."""
    instructions: tuple[str, ...] = Field(
        default=tuple(f"a transformed version of the image into {look}" for look in _LOOKS), min_length=1
    )
    """One edit for each; the published nine. An epoch draws one per image."""
    steps: PositiveInt = 100
    """Denoising steps."""
    guidance: PositiveFloat = 4.0
    """Guidance towards the instruction."""
    image_guidance: PositiveFloat = 1.5
    """Guidance towards the image."""


class TrainConfig(Section):
    """Stage 3: training of the segmenters."""

    arms: tuple[str, ...] = ("full-sup", "mcpmix", "mcpmix-rla")
    """Strategies to train; each with every seed."""
    seeds: tuple[NaturalInt, ...] = (0, 1, 2)
    strategies: dict[str, dict[str, Any]] = Field(default={})
    """Settings of strategies that differ from their papers', as `{mixup: {alpha: 0.4}}`; docs/baselines.md
    lists them. Those of the arms of MCPMix are in the section rla."""

    @field_validator("arms", mode="before")
    @classmethod
    def _names_with_commas(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else value

    @field_validator("seeds", mode="before")
    @classmethod
    def _one_seed(cls, value: object) -> object:
        return (value,) if isinstance(value, int) else value

    epochs: PositiveInt = 400
    """T: schedules reach their end here."""
    tail_epochs: NaturalInt = 0
    """Further epochs with schedules held at their end."""
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 1e-3
    weight_decay: float = Field(default=1e-4, ge=0)
    validate_every: PositiveInt = 10
    """Epochs between two validations; the weights of the best one are kept."""
    validation_momentum: float = Field(default=0.6, ge=0, lt=1)
    """Weight of earlier validations when a checkpoint is judged: each counts this many times as much as the
    one after it. 0: a checkpoint is judged by its own validation alone."""
    rotate: float = Field(default=30.0, ge=0, le=180)
    """Largest rotation in degrees, shared by image, counterpart and mask."""
    scale: float = Field(default=0.2, ge=0, lt=1)
    """Largest relative change of size."""
    flip: bool = True
    colour: float = Field(default=0.0, ge=0, le=1)
    """Strength of colour jitter, the same for image and counterpart; 0 switches it off."""
    crop: float = Field(default=0.0, ge=0, lt=1)
    """Largest share of each side that is cropped, the same for image, counterpart and mask; 0: none."""
    blur: float = Field(default=0.0, ge=0)
    """Largest standard deviation of a blur in pixels, the same for image and counterpart; 0: none."""


class EvaluationConfig(Section):
    """Scores on the test split."""

    threshold: float = Field(default=0.5, gt=0, lt=1)
    tolerances: tuple[PositiveInt, ...] = (2, 5, 10)
    """Boundary tolerances in pixels."""
    band: PositiveInt = 2
    """Half-width of the boundary IoU band in pixels."""
    seen: Literal["refuse", "mark"] = "refuse"
    """Test images that the generator or the segmenter has seen, or nearly: refuse them, or score them and
    mark every table as leaking."""


class TrackConfig(Section):
    """Copies of the training logs for other programs, below the run's folder `track`; nothing is sent."""

    tensorboard: bool = False
    mlflow: bool = False
    wandb: bool = False
    """Weights & Biases, in offline mode."""

    @property
    def chosen(self) -> list[str]:
        """The names of those that are turned on."""
        turned_on = {"tensorboard": self.tensorboard, "mlflow": self.mlflow, "wandb": self.wandb}
        return [name for name, on in turned_on.items() if on]
