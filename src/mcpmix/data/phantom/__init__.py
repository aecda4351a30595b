"""Procedural endoscopic scenes with exact masks and depth, for a demonstration that needs no download."""

from mcpmix.data.phantom.language import WORDS, caption
from mcpmix.data.phantom.renderer import PhantomFrame, render
from mcpmix.data.phantom.sheet import contact_sheet
from mcpmix.data.phantom.style import PatientStyle, patient_style

__all__ = ["WORDS", "PatientStyle", "PhantomFrame", "caption", "contact_sheet", "patient_style", "render"]
