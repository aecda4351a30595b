"""How the embedded weights are made, from phantom frames or from a folder of unlabelled images."""
