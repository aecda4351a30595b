"""Layer 1: the pieces of a training loop."""
