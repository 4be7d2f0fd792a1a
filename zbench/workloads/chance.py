"""Random numbers of torch, Python and NumPy, all from one seed: a model, its data and its steps are the same
in every process."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.random  # NumPy imports it when it is first used: once in the warm server, not in every rank
import torch


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on `device` draws from: dropout, dropped layers, masked inputs.

    `torch.manual_seed` also asks every kind of accelerator that there is not: 0.1 ms each time.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
    _seed_python_and_numpy(seed)


@contextmanager
def drawn_by(seed: int) -> Iterator[None]:
    """Have what is made in this context draw from `seed`; afterwards the CPU's generators go on as before."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _seed_python_and_numpy(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def _seed_python_and_numpy(seed: int) -> None:
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
