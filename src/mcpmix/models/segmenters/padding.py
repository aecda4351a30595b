"""Any image size for networks that want multiples of a number."""

from torch import Tensor, nn
from torch.nn import functional as F


class AnySize(nn.Module):
    """A network of its own input sizes, made to take all.

    The rule: the image is continued to the right and below by its own last column and row up to the next
    multiple of `multiple`; of the logits, the part of the image is kept. A size that is a multiple already
    passes unchanged.

    Args:
        network: B,3,H,W to B,1,H,W for sides that are multiples of `multiple`.
        multiple: what a side must be a multiple of, in pixels.
    """

    def __init__(self, network: nn.Module, multiple: int = 32) -> None:
        super().__init__()
        self.network = network
        self.multiple = multiple

    def forward(self, images: Tensor) -> Tensor:
        """B,3,H,W to B,1,H,W logits."""
        height, width = images.shape[2:]
        padded = F.pad(images, (0, -width % self.multiple, 0, -height % self.multiple), mode="replicate")
        logits: Tensor = self.network(padded)
        return logits[..., :height, :width]
