"""MCPMix and RLA as plain pieces, and the strategies that a training loop runs."""

from mcpmix.mixing.mcpmix import mix
from mcpmix.mixing.mmd import median_bandwidth, mmd
from mcpmix.mixing.registry import STRATEGIES, build_strategy
from mcpmix.mixing.rla import RLA, RLALoss
from mcpmix.mixing.schedules import cosine_decay, cosine_share, stepwise_share
from mcpmix.mixing.strategy import Batch, FixedStrategy, Strategy, Term

__all__ = [
    "RLA",
    "STRATEGIES",
    "Batch",
    "FixedStrategy",
    "RLALoss",
    "Strategy",
    "Term",
    "build_strategy",
    "cosine_decay",
    "cosine_share",
    "median_bandwidth",
    "mix",
    "mmd",
    "stepwise_share",
]
