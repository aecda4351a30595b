"""segmenter."""
