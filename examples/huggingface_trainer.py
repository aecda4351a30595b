"""RLA in the Trainer of Hugging Face. Used by `huggingface_rla.py`; copy it."""

from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerState

from mcpmix.mixing.rla import RLA
from mcpmix.networks.loss import frozen_statistics


class RLATrainer(Trainer):
    """A Trainer whose training batches bring counterparts of `pixel_values` as `synthetic`."""

    def __init__(self, *arguments: Any, rla: RLA, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self.rla = rla.to(self.args.device)
        self.add_callback(_Epochs(self.rla))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The optimiser, with a group for the gates."""
        if self.optimizer is None:
            batches = len(self.get_train_dataloader()) / self.args.gradient_accumulation_steps
            lr = self.rla.gate_learning_rate(max(1, int(self.args.num_train_epochs * batches)))
            gates = {"params": self.rla.gate_parameters(), "lr": lr, "weight_decay": 0.0}
            super().create_optimizer(model).add_param_group(gates)
        return self.optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ANN401, ARG002
    ) -> Any:  # noqa: ANN401
        """The loss of real and mixed images; the usual one in evaluation."""
        synthetic = inputs.pop("synthetic", None)
        if not model.training or synthetic is None:
            return super().compute_loss(model, inputs, return_outputs)
        images = inputs["pixel_values"]
        mixed = self.rla.mix(images, synthetic)
        with frozen_statistics(model):  # batch norm: running statistics stay those of real images
            loss_mix = super().compute_loss(model, {**inputs, "pixel_values": mixed})
        loss_real, outputs = super().compute_loss(model, inputs, return_outputs=True)
        total = self.rla.loss(loss_real, loss_mix, images, mixed).total
        return (total, outputs) if return_outputs else total


class _Epochs(TrainerCallback):
    def __init__(self, rla: RLA) -> None:
        self.rla = rla

    def on_epoch_begin(self, _: object, state: TrainerState, *others: object, **options: object) -> None:  # noqa: ARG002
        self.rla.set_epoch(int(state.epoch or 0) + 1)
