"""A training loop in plain PyTorch; `pytorch_rla.py` is the same with RLA."""

import segmentation_models_pytorch as smp
import torch
from torch import nn
from torch.utils.data import DataLoader

from pairs import Phantom


def main(epochs: int = 5) -> list[float]:
    """Train, and return the mean loss of each epoch."""
    torch.manual_seed(0)
    loader = DataLoader(Phantom(8), batch_size=4, shuffle=True)
    model = smp.Unet("resnet18", encoder_weights=None, classes=1)
    criterion = nn.BCEWithLogitsLoss()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    history = []
    for epoch in range(1, epochs + 1):
        losses = []
        for images, masks in loader:
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
