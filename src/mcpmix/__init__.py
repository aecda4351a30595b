"""Mask-consistent paired mixing for lesion segmentation with few annotated images."""

__version__ = "0.1.0"
