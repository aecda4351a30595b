"""Training with Lightning and RLA; `lightning_plain.py` is the same without."""

import lightning
import segmentation_models_pytorch as smp
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_callback import RLACallback
from mcpmix.mixing.rla import RLA
from mcpmix.networks.features import load_features
from pairs import Phantom


class Segmenter(lightning.LightningModule):
    """A network with its loss and optimiser."""

    def __init__(self) -> None:
        super().__init__()
        self.network = smp.Unet("resnet18", encoder_weights=None, classes=1)
        self.criterion = nn.BCEWithLogitsLoss()
        self.history: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:  # noqa: ARG002
        """The loss of a batch (images, masks)."""
        images, masks = batch
        loss = self.criterion(self.network(images), masks)
        self.history.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW for all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(epochs: int = 5) -> list[float]:
    """Train, and return the loss of each forward pass."""
    lightning.seed_everything(0, verbose=False)
    module = Segmenter()
    loader = DataLoader(Phantom(8, pairs=True), batch_size=4, shuffle=True)
    rla = RLA(epochs, load_features("embedded"))
    rla.calibrate((images, synthetic) for images, synthetic, _ in loader)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=[RLACallback(rla)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    print(f"loss {module.history[0]:.3f} -> {module.history[-1]:.3f}, s {rla.s:.3f}, rho {rla.rho:.3f}")
    return module.history


if __name__ == "__main__":
    main()
