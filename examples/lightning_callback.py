"""RLA as a Lightning callback: the module stays as it is. Used by `lightning_rla.py`; copy it."""

from typing import Any

import lightning
import torch
from torch import Tensor

from mcpmix.mixing.rla import RLA
from mcpmix.networks.loss import frozen_statistics


class RLACallback(lightning.Callback):
    """Trains a module whose `training_step` takes (images, masks) on batches (images, synthetic, masks).

    For modules whose `configure_optimizers` returns one optimiser.
    """

    def __init__(self, rla: RLA) -> None:
        self.rla = rla

    def setup(self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str) -> None:
        """Put RLA around the module's step, and the gates into its optimiser."""
        if stage != "fit":
            return
        step, configure = module.training_step, module.configure_optimizers

        def training_step(batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
            images, synthetic, masks = batch
            mixed = self.rla.mix(images, synthetic)
            with frozen_statistics(module):  # batch norm: running statistics stay those of real images
                loss_mix = step((mixed, masks), batch_idx)
            return self.rla.loss(step((images, masks), batch_idx), loss_mix, images, mixed).total

        def configure_optimizers() -> torch.optim.Optimizer:
            optimiser = configure()
            lr = self.rla.gate_learning_rate(int(trainer.estimated_stepping_batches))
            optimiser.add_param_group({"params": self.rla.gate_parameters(), "lr": lr, "weight_decay": 0.0})
            return optimiser

        module.training_step, module.configure_optimizers = training_step, configure_optimizers

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        """Tell RLA the epoch."""
        self.rla.to(module.device).set_epoch(trainer.current_epoch + 1)

    def teardown(self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str) -> None:  # noqa: ARG002
        """Give the module its own step back."""
        if stage == "fit":
            del module.training_step, module.configure_optimizers

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return self.rla.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.rla.load_state_dict(state_dict)
