"""Supervised training under strong augmentation: the floor that a gain of any mixing has to clear."""

from typing import ClassVar, final

import torch

from mcpmix.data.augment import (
    Blur,
    Colour,
    Geometry,
    apply_blur,
    apply_colour,
    apply_geometry,
    draw_crop,
    normalise,
    to_pixels,
)
from mcpmix.mixing.strategy import Batch, FixedStrategy, Search, Term, require


@final
class StrongAugmentation(FixedStrategy):
    """Real images only, with strong changes of colour, sharpness and window; the mask moves with the window.

    Strengths are those of UniMatch (Yang et al., CVPR 2023), the usual strong augmentation of segmentation
    with few labels: with probability 0.8 brightness, contrast and saturation change by up to half and the hue
    by up to a quarter of the circle; one image in five turns grey; every second one is blurred; a window of
    half to the whole of each side is enlarged, as a resize by up to 2 with a crop does. It acts after the
    augmentation that all strategies share. Two things differ: the changes of colour have a fixed order, and
    nothing is shrunk by half, which would leave most of the frame empty.

    Cost: that of Full-Sup; a background thread augments one batch ahead.

    Args:
        tone: Largest relative change of brightness, contrast and saturation, in [0, 1].
        hue: Largest turn of the hue, as a share of the circle, in [0, 0.5].
        jitter: How often tone and hue change, in [0, 1].
        grey: How often an image turns grey, in [0, 1].
        blur: Smallest and largest standard deviation of the blur, in pixels.
        blurred: How often an image is blurred, in [0, 1].
        crop: Largest share of each side that is cut away, in [0, 1).
    """

    needs_pairs: ClassVar[bool] = False
    ahead: ClassVar[bool] = True
    search: ClassVar[Search] = {"tone": (0.25, 0.5), "hue": (0.05, 0.25), "crop": (0.25, 0.5)}

    def __init__(
        self,
        tone: float = 0.5,
        hue: float = 0.25,
        jitter: float = 0.8,
        grey: float = 0.2,
        blur: tuple[float, float] = (0.1, 2.0),
        blurred: float = 0.5,
        crop: float = 0.5,
    ) -> None:
        super().__init__()
        shares = {"tone": tone, "jitter": jitter, "grey": grey, "blurred": blurred}
        checks = {
            f"{name} is {value}; expected a value in [0, 1]": 0 <= value <= 1
            for name, value in shares.items()
        }
        checks |= {
            f"hue is {hue}; expected a value in [0, 0.5]": 0 <= hue <= 0.5,
            f"blur is {blur}; expected a smaller and a larger deviation": 0 <= blur[0] <= blur[1],
            f"crop is {crop}; expected a value in [0, 1)": 0 <= crop < 1,
        }
        require("Strong augmentation", checks)
        self.tone, self.hue, self.jitter, self.grey = tone, hue, jitter, grey
        self.blur, self.blurred, self.crop = tuple(blur), blurred, crop

    def terms(self, batch: Batch, rng: torch.Generator) -> list[Term]:
        """One term: the changed images under the masks of what they show."""
        from torchvision.transforms.v2.functional import adjust_hue  # it takes seconds to load

        count = len(batch.images)
        drawn = 2 * torch.rand(4, count, generator=rng) - 1
        jittered, grey, blurred = torch.rand(3, count, generator=rng)
        sigma = self.blur[0] + (self.blur[1] - self.blur[0]) * torch.rand(count, generator=rng)
        crop = draw_crop(count, rng, self.crop)
        changes = drawn * (jittered < self.jitter)
        brightness, contrast, saturation = self.tone * changes[:3]
        saturation[grey < self.grey] = -1.0
        still = torch.zeros(count)
        whole = Geometry(still, still + 1, still.bool(), still.bool())
        pixels = apply_geometry(whole, to_pixels(batch.images), "bilinear", crop)
        turns = (self.hue * changes[3]).tolist()
        turned = torch.stack([adjust_hue(image, turn) for image, turn in zip(pixels, turns, strict=True)])
        coloured = apply_colour(Colour(brightness, contrast, saturation, torch.zeros(count, 3)), turned)
        soft = apply_blur(Blur(sigma * (blurred < self.blurred)), coloured)
        return [Term(normalise(soft), apply_geometry(whole, batch.masks, "nearest", crop), 1.0, "real")]
