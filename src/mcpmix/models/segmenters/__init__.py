"""Segmentation networks: any module from B,3,H,W images (ImageNet-normalised) to B,1,H,W logits.

All take any image size. SegFormer does so itself; the others continue the image to the right and below by
its last column and row up to the next multiple of 32 (of 16 for the small SegNet), and give the logits of
the image (see `padding.AnySize`).
"""

from mcpmix.models.segmenters.files import load_network, read_description, save_segmenter
from mcpmix.models.segmenters.registry import SEGMENTERS, build_segmenter

__all__ = ["SEGMENTERS", "build_segmenter", "load_network", "read_description", "save_segmenter"]
