"""The configuration: one schema, one place for a default, all problems at once."""

from mcpmix.core.config.data import DataConfig, PhantomConfig, SplitConfig
from mcpmix.core.config.generation import (
    AdmissionConfig,
    DepthConfig,
    FinetuneConfig,
    GeneratorConfig,
    GeneratorValidationConfig,
    JudgeConfig,
    PromptConfig,
    SynthesisConfig,
)
from mcpmix.core.config.loading import load_config, preset_names, resolve_config, to_yaml
from mcpmix.core.config.schema import Config, RuntimeConfig
from mcpmix.core.config.segmentation import (
    EditorConfig,
    EvaluationConfig,
    RLAConfig,
    SegmenterConfig,
    TrainConfig,
)

__all__ = [
    "AdmissionConfig",
    "Config",
    "DataConfig",
    "DepthConfig",
    "EditorConfig",
    "EvaluationConfig",
    "FinetuneConfig",
    "GeneratorConfig",
    "GeneratorValidationConfig",
    "JudgeConfig",
    "PhantomConfig",
    "PromptConfig",
    "RLAConfig",
    "RuntimeConfig",
    "SegmenterConfig",
    "SplitConfig",
    "SynthesisConfig",
    "TrainConfig",
    "load_config",
    "preset_names",
    "resolve_config",
    "to_yaml",
]
