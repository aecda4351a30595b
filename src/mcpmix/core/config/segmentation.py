"""The sections `segmenter`, `rla`, `editor`, `train` and `evaluation`: stage 3 and its scores."""

from typing import Any, Literal

from pydantic import Field

from mcpmix.core.config.section import NaturalInt, PositiveFloat, PositiveInt, Section, Share


class SegmenterConfig(Section):
    """The network of stage 3."""

    name: str = "segformer"
    """segformer, unet, deeplabv3plus, segnet, or package.module:ClassName of an own network."""
    variant: str = "b0"
    """segformer: nano (for CPUs), b0 ... b5; unet, deeplabv3plus: encoder, as resnet18; segnet: vgg16."""
    weights: str | None = None
    """Hub id or local folder (segformer), or file of encoder or network weights; none: from scratch."""


class RLAConfig(Section):
    """Real-anchored learnable annealing and the fixed mixing arms."""

    s_max: float = Field(default=0.7, gt=0, le=1)
    rho_max: float = Field(default=0.5, gt=0, le=1)
    mu: float = Field(default=1.0, ge=0)
    """Weight of the discrepancy above its margin."""
    tau0: PositiveFloat | Literal["auto"] = "auto"
    """Margin at the start; auto: mean discrepancy of the first batches at s = s_max."""
    lambda_s: float = Field(default=1e-3, ge=0)
    lambda_rho: float = Field(default=1e-3, ge=0)
    controller: Literal["network", "scalar"] = "network"
    gate_learning_rate: PositiveFloat | Literal["auto"] = "auto"
    """auto: total possible travel of about 3.5 logits over the run."""
    spread: Share = 0.0
    """Half-width of the samples' shares around s, relative to s: 0, all take s (paper); 1, from U[0, 2s]."""
    mmd_every: PositiveInt = 1
    """Evaluate the discrepancy on every k-th step."""
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
        default=tuple(
            f"a transformed version of the image into {look}"
            for look in (
                "autumn",
                "snowy",
                "watercolor art",
                "sunset",
                "rainbow",
                "aurora",
                "mosaic",
                "ukiyo-e",
                "a sketch with crayon",
            )
        ),
        min_length=1,
    )
    """One edit for each; the published nine. An epoch draws one per image."""
    steps: PositiveInt = 100
    """Denoising steps."""
    guidance: PositiveFloat = 4.0
    """Guidance towards the instruction."""
    image_guidance: PositiveFloat = 1.5
    """Guidance towards the image."""
    batch_size: PositiveInt = 4
    """Images edited at once."""


class TrainConfig(Section):
    """Stage 3."""

    arms: tuple[str, ...] = ("full-sup", "mcpmix", "mcpmix-rla")
    """Strategies to train; each with every seed."""
    seeds: tuple[NaturalInt, ...] = (0, 1, 2)
    strategies: dict[str, dict[str, Any]] = Field(default={})
    """Settings of strategies that differ from their papers', as `{mixup: {alpha: 0.4}}`; docs/baselines.md
    lists them. Those of the arms of MCPMix are in the section rla."""
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
    """How much the validations before a checkpoint count when it is judged: each this many times as much as
    the one after it. 0: a checkpoint is judged by its own validation alone."""
    rotate: float = Field(default=30.0, ge=0, le=180)
    """Largest rotation in degrees, shared by image, counterpart and mask."""
    scale: float = Field(default=0.2, ge=0, lt=1)
    """Largest relative change of size."""
    flip: bool = True
    colour: float = Field(default=0.0, ge=0, le=1)
    """Strength of colour jitter, the same for image and counterpart; 0 switches it off."""
    crop: float = Field(default=0.0, ge=0, lt=1)
    """Largest share of each side that is cut away, alike for image, counterpart and mask; 0: nothing."""
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
