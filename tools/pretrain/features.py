"""Trains the embedded feature network: it learns to name the appearance words of phantom frames."""

import math
from pathlib import Path

import numpy as np
import torch
from tools.pretrain.corpus import Corpus
from tools.pretrain.fitting import fit
from torch import Tensor, nn
from torch.nn import functional as F

from mcpmix.core.optimisers import one_cycle
from mcpmix.core.progress import SILENT, Progress
from mcpmix.core.seeds import numpy_rng
from mcpmix.networks.features import SmallFeatures, save_features


def train_features(
    corpus: Corpus,
    folder: Path,
    *,
    steps: int,
    batch_size: int = 32,
    learning_rate: float = 2e-3,
    progress: Progress = SILENT,
) -> None:
    """Multi-label classification of appearance words through a linear head that is thrown away."""
    torch.manual_seed(0)
    labels = word_labels(corpus)
    model = SmallFeatures()
    head = nn.Linear(model.channels[-1], labels.shape[1])
    both = nn.Sequential(model, head)
    optimiser = torch.optim.AdamW(both.parameters(), learning_rate)

    def loss(index: int) -> Tensor:
        rng = numpy_rng("feature batch", index)
        chosen = np.sort(rng.choice(len(corpus), batch_size, replace=False))
        images = torch.from_numpy(corpus.images[chosen]).permute(0, 3, 1, 2).float() / 255
        images = images.flip(-1) if rng.random() < 0.5 else images
        return F.binary_cross_entropy_with_logits(both(images), labels[chosen])

    fit(
        loss,
        both,
        optimiser,
        one_cycle(optimiser, steps),
        steps=steps,
        checkpoint=folder / "features.checkpoint",
        title="features",
        largest_gradient=math.inf,
        progress=progress,
    )
    save_features(model, folder / "features")


def word_labels(corpus: Corpus) -> Tensor:
    """N,V zeros and ones: which appearance words each image has."""
    vocabulary = sorted({word for words in corpus.words for word in words})
    column = {word: index for index, word in enumerate(vocabulary)}
    labels = torch.zeros(len(corpus), len(vocabulary))
    for row, words in enumerate(corpus.words):
        labels[row, [column[word] for word in words]] = 1
    return labels
