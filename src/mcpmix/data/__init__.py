"""Layer 1: samples, folders, splits, the index of a data set, paired transforms and the phantom."""
