"""Layer 1: networks. The only importers of transformers, diffusers, segmentation-models-pytorch and timm."""
