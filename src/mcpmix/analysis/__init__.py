"""Analyses: short trainings that measure why something happens."""
