"""Words for a phantom frame: a small closed vocabulary, and the caption made of it."""

from mcpmix.data.phantom.renderer import PhantomFrame
from mcpmix.data.phantom.style import (
    ELEVATIONS,
    FOCUS,
    LESION_COLOURS,
    LESION_SIZES,
    LIGHTS,
    MUCOSA,
    SURFACES,
    VESSELS,
    VIEWS,
)

_GROUPS = (tuple(MUCOSA), VIEWS, LIGHTS, VESSELS, FOCUS, SURFACES, LESION_COLOURS, ELEVATIONS, LESION_SIZES)

WORDS: tuple[str, ...] = tuple(dict.fromkeys(word for group in _GROUPS for word in group))
"""Every appearance word that `PhantomFrame.words` may hold, each once."""


def caption(frame: PhantomFrame, lesion: bool = True) -> str:
    """Describe a frame in one lower-case sentence.

    Args:
        frame: A rendered frame.
        lesion: Whether to name the lesion; without it, the caption tells only the patient's appearance.

    Returns:
        For example "a clinical colon endoscopic image, pale mucosa, octagonal view, bright light, dense
        vessels, sharp focus, clean surface, showing a small reddish raised lesion".
    """
    mucosa, view, light, vessels, focus, surface, colour, elevation, size = frame.words
    text = (
        f"a clinical colon endoscopic image, {mucosa} mucosa, {view} view, {light} light, {vessels} vessels, "
        f"{focus} focus, {surface} surface"
    )
    return f"{text}, showing a {size} {colour} {elevation} lesion" if lesion else text
