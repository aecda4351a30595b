"""Layer 2: how the embedded networks are made, from phantom frames or from a folder of unlabelled images."""
