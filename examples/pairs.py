"""Data for the examples: phantom images with masks, and counterparts under the same masks."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from mcpmix.data.augment import apply_colour, draw_colour
from mcpmix.phantom import render


class Phantom(Dataset):
    """Images (3, size, size) in [0, 1] and masks (1, size, size) in {0, 1}: `image, mask`.

    With `pairs`, items are `image, counterpart, mask`. The counterpart here is the image in other colours, so
    that the examples need no generator. Any image under the same mask will do in its place: RLA does not ask
    where it comes from. The method's own counterparts are those of `mcpmix synthesize`.
    """

    def __init__(self, count: int, pairs: bool = False, size: int = 64) -> None:
        frames = [render(0, patient=number // 4, frame=number % 4, size=size) for number in range(count)]
        self.images = torch.stack([torch.tensor(f.image).permute(2, 0, 1) / 255 for f in frames])
        self.masks = torch.stack([torch.tensor(f.mask)[None].float() for f in frames])
        colour = draw_colour(count, torch.Generator().manual_seed(0), strength=1.0)
        self.counterparts = apply_colour(colour, self.images)
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if self.pairs:
            return self.images[index], self.counterparts[index], self.masks[index]
        return self.images[index], self.masks[index]
