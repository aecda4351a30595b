"""The configuration: one schema, one place for a default, all problems at once."""

from mcpmix.core.config.loading import load_config, preset_names, resolve_config, to_yaml
from mcpmix.core.config.schema import (
    Config,
    DataConfig,
    DepthConfig,
    EvaluationConfig,
    FinetuneConfig,
    GeneratorConfig,
    GeneratorValidationConfig,
    PhantomConfig,
    PromptConfig,
    RLAConfig,
    RuntimeConfig,
    SegmenterConfig,
    SplitConfig,
    SynthesisConfig,
    TrainConfig,
)

__all__ = [
    "Config",
    "DataConfig",
    "DepthConfig",
    "EvaluationConfig",
    "FinetuneConfig",
    "GeneratorConfig",
    "GeneratorValidationConfig",
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
