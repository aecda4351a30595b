"""A training loop with MONAI; `monai_rla.py` is the same with RLA."""

import torch
from monai.data import DataLoader, Dataset
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import Compose, RandFlipd, RandRotate90d
from monai.utils import set_determinism

from pairs import Phantom


def main(epochs: int = 5) -> list[float]:
    """Train, and return the mean loss of each epoch."""
    set_determinism(0)
    samples = [{"image": image, "label": mask} for image, mask in Phantom(8)]
    keys = ["image", "label"]
    augment = Compose([RandFlipd(keys, prob=0.5, spatial_axis=0), RandRotate90d(keys, prob=0.5)])
    loader = DataLoader(Dataset(samples, augment), batch_size=4, shuffle=True)
    model = UNet(2, in_channels=3, out_channels=1, channels=(16, 32, 64), strides=(2, 2))
    criterion = DiceCELoss(sigmoid=True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    history = []
    for epoch in range(1, epochs + 1):
        losses = []
        for batch in loader:
            images, masks = batch["image"], batch["label"]
            loss = criterion(model(images), masks)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        history.append(sum(losses) / len(losses))
        print(f"epoch {epoch}: loss {history[-1]:.3f}")
    return history


if __name__ == "__main__":
    main()
