"""What a training job leaves of the process that it runs in: everything as it was."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def isolated(threads: int | None) -> Iterator[None]:
    """Give back the process as it was: TRL seeds every global generator, and threads are a setting of the process."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state(), torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        torch.set_num_threads(before[3])
