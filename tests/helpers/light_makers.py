"""Makers for spawned workers that import nothing heavy, so that a worker starts in a moment."""

import os
import time
from dataclasses import dataclass

import numpy as np

from mcpmix.core.errors import ModelError

SIZE = 4


def picture(index, replica):
    """An image that tells whose it is."""
    return np.full((SIZE, SIZE, 3), (7 * index + 31 * replica) % 251, np.uint8)


@dataclass
class Light:
    """Makes `picture`s; `seconds` each batch, and the batch size in the last pixel."""

    seconds: float = 0.0

    def make(self, requests):
        time.sleep(self.seconds)
        images = np.stack([picture(request.index, request.replica) for request in requests])
        images[:, -1, -1] = len(requests)
        return images


class Failing:
    def make(self, requests):
        raise ModelError("the ControlNet has no weights for this")


class Broken:
    def make(self, requests):
        return 1 / 0


class Killed:
    def make(self, requests):
        os.kill(os.getpid(), 9)


def making(build):
    """What a worker calls with requests."""
    return build().make


def cannot_be_built():
    raise ModelError("no such base")
