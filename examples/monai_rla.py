"""A training loop with MONAI and RLA; `monai_plain.py` is the same without."""

import torch
from monai.data import DataLoader, Dataset
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import Compose, RandFlipd, RandRotate90d
from monai.utils import set_determinism

import mcpmix
from mcpmix.networks.features import load_features
from pairs import Phantom


def main(epochs: int = 5) -> list[float]:
    """Train, and return the mean loss of each epoch."""
    set_determinism(0)
    samples = [{"image": i, "synthetic": s, "label": m} for i, s, m in Phantom(8, pairs=True)]
    keys = ["image", "synthetic", "label"]  # one geometric transform for all three
    augment = Compose([RandFlipd(keys, prob=0.5, spatial_axis=0), RandRotate90d(keys, prob=0.5)])
    loader = DataLoader(Dataset(samples, augment), batch_size=4, shuffle=True)
    model = UNet(2, in_channels=3, out_channels=1, channels=(16, 32, 64), strides=(2, 2))
    criterion = DiceCELoss(sigmoid=True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rla = mcpmix.RLA(epochs, load_features("embedded"))
    rla.calibrate((batch["image"], batch["synthetic"]) for batch in loader)
    gate_lr = rla.gate_learning_rate(steps=epochs * len(loader))
    optimiser.add_param_group({"params": rla.gate_parameters(), "lr": gate_lr, "weight_decay": 0.0})
    history = []
    for epoch in range(1, epochs + 1):
        rla.set_epoch(epoch)
        losses = []
        for batch in loader:
            images, masks = batch["image"], batch["label"]
            mixed = rla.mix(images, batch["synthetic"])
            loss_real, loss_mix = criterion(model(images), masks), criterion(model(mixed), masks)
            loss = rla.loss(loss_real, loss_mix, images, mixed).total
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        history.append(sum(losses) / len(losses))
        print(f"epoch {epoch}: loss {history[-1]:.3f}, s {rla.s:.3f}, rho {rla.rho:.3f}")
    return history


if __name__ == "__main__":
    main()
