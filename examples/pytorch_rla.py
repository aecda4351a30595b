"""A training loop in plain PyTorch with RLA; `pytorch_plain.py` is the same without."""

import segmentation_models_pytorch as smp
import torch
from torch import nn
from torch.utils.data import DataLoader

import mcpmix
from mcpmix.networks.features import load_features
from mcpmix.networks.loss import frozen_statistics
from pairs import Phantom


def main(epochs: int = 5) -> list[float]:
    """Train, and return the mean loss of each epoch."""
    torch.manual_seed(0)
    loader = DataLoader(Phantom(8, pairs=True), batch_size=4, shuffle=True)
    model = smp.Unet("resnet18", encoder_weights=None, classes=1)
    criterion = nn.BCEWithLogitsLoss()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    rla = mcpmix.RLA(epochs, load_features("embedded"))
    rla.calibrate((images, synthetic) for images, synthetic, _ in loader)
    gate_lr = rla.gate_learning_rate(steps=epochs * len(loader))
    optimiser.add_param_group({"params": rla.gate_parameters(), "lr": gate_lr, "weight_decay": 0.0})
    history = []
    for epoch in range(1, epochs + 1):
        rla.set_epoch(epoch)
        losses = []
        for images, synthetic, masks in loader:
            mixed = rla.mix(images, synthetic)
            with frozen_statistics(model):  # batch norm: running statistics stay those of real images
                loss_mix = criterion(model(mixed), masks)
            loss_real = criterion(model(images), masks)
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
