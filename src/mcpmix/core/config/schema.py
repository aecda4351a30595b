"""What can be configured. Frozen models; unknown keys are errors; each field says what it does.

Objects of the library take plain arguments: the configuration stops at the stage.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from mcpmix.core.config.data import DataConfig
from mcpmix.core.config.generation import DepthConfig, FinetuneConfig, GeneratorConfig, SynthesisConfig
from mcpmix.core.config.section import NaturalInt, Section
from mcpmix.core.config.segmentation import (
    EditorConfig,
    EvaluationConfig,
    RLAConfig,
    SegmenterConfig,
    TrainConfig,
)


class RuntimeConfig(Section):
    """The machine."""

    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:1`, `mps`."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs that have it, otherwise float32."""
    threads: NaturalInt = 0
    """CPU threads in all; 0: one per core. Trainings that run side by side share them."""
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
    finetune: FinetuneConfig = FinetuneConfig()
    synthesis: SynthesisConfig = SynthesisConfig()
    segmenter: SegmenterConfig = SegmenterConfig()
    train: TrainConfig = TrainConfig()
    rla: RLAConfig = RLAConfig()
    editor: EditorConfig = EditorConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @property
    def folder(self) -> Path:
        """Where this run's stage folders are."""
        return self.output / self.name
