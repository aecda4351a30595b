"""Procedural endoscopic scenes with exact masks and depth, for a demonstration that needs no download."""

from mcpmix.phantom.frame import PhantomFrame, caption, contact_sheet, render
from mcpmix.phantom.scene import WORDS, patient_style

__all__ = ["WORDS", "PhantomFrame", "caption", "contact_sheet", "patient_style", "render"]
