"""Training with the Trainer of Hugging Face and RLA; `huggingface_plain.py` is the same without."""

import torch
from torch import Tensor
from transformers import SegformerConfig, SegformerForSemanticSegmentation, TrainingArguments

from huggingface_trainer import RLATrainer
from mcpmix.mixing.rla import RLA
from mcpmix.networks.features import load_features
from pairs import Phantom


def collate(samples: list[tuple[Tensor, ...]]) -> dict[str, Tensor]:
    """Samples to the arguments of the model."""
    images, synthetic, masks = (torch.stack(part) for part in zip(*samples, strict=True))
    return {"pixel_values": images, "synthetic": synthetic, "labels": masks[:, 0]}


def main(epochs: int = 5) -> list[float]:
    """Train, and return the loss of each step."""
    arguments = TrainingArguments(
        "trainer_output",
        num_train_epochs=epochs,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    torch.manual_seed(0)
    config = SegformerConfig(
        num_labels=1, depths=[1] * 4, hidden_sizes=[16, 32, 80, 128], decoder_hidden_size=64
    )
    model = SegformerForSemanticSegmentation(config)
    pairs = Phantom(8, pairs=True)
    rla = RLA(epochs, load_features("embedded"))
    rla.calibrate([(pairs.images, pairs.counterparts)])
    trainer = RLATrainer(model, arguments, data_collator=collate, train_dataset=pairs, rla=rla)
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


if __name__ == "__main__":
    main()
