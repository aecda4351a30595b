"""Segmenters as ONNX files that need neither torch nor this package. Layer 4, beside the pipeline."""

from mcpmix.exporting.run import Exported, export_segmenter
from mcpmix.exporting.verification import Agreement

__all__ = ["Agreement", "Exported", "export_segmenter"]
