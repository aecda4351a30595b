"""Trains the embedded start of the small segmenter: it learns depth, so no lesion is ever labelled for it."""

from pathlib import Path

import torch
from tools.pretrain.corpus import Corpus
from tools.pretrain.depth import depth_batch, depth_loss
from tools.pretrain.fitting import fit
from torch import Tensor

from mcpmix.core.optimisers import one_cycle
from mcpmix.core.progress import SILENT, Progress
from mcpmix.data.augment import normalise
from mcpmix.networks.segformer import Segformer, save_headless

_EDGES = 2.0  # differences of neighbours count this much: a lesion is a small step in depth


def train_segmenter(
    corpus: Corpus,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 16,
    learning_rate: float = 2e-3,
    progress: Progress = SILENT,
) -> None:
    """Train SegFormer nano on relative inverse depth (near = 1); save it without its last layer.

    From scratch, 24 annotated frames leave this network on a plateau for hundreds of steps, where it answers
    "no lesion" everywhere; which initial weights get off it is chance. What ImageNet is for larger networks,
    depth is here.
    """
    torch.manual_seed(0)
    model = Segformer("nano")
    optimiser = torch.optim.AdamW(model.parameters(), learning_rate)

    def loss(index: int) -> Tensor:
        images, depth = depth_batch(corpus, index, batch_size)
        predicted = model(normalise((images + 1) / 2))[:, 0]
        return depth_loss(predicted, depth, edges=_EDGES)

    fit(
        loss,
        model,
        optimiser,
        one_cycle(optimiser, steps),
        steps=steps,
        checkpoint=folder / "segmenter.checkpoint",
        title="segmenter",
        progress=progress,
    )
    save_headless(model, folder / "segmenter")
