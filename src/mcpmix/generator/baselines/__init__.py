"""Generative baselines: stages that make synthetic images with masks of their own."""
