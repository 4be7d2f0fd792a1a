"""This rank's random number generators, as tensors: torch on the CPU and its devices, numpy, Python."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def rng_state() -> dict[str, Tensor]:
    """Return the state of every generator that a training script is likely to draw from."""
    _, numbers, _ = random.getstate()
    _, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "torch.cpu": torch.get_rng_state(),
        **{f"torch.cuda.{k}": state for k, state in enumerate(_cuda_states())},
        "python": torch.tensor(numbers, dtype=torch.int64),
        "numpy.keys": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
        "numpy.rest": torch.tensor([position, has_gauss, gauss], dtype=torch.float64),
    }


def set_rng_state(state: dict[str, Tensor]) -> None:
    """Have the generators go on from `state`; devices that are not there are left out."""
    _set(state, torch.default_generator, random, np.random)
    for k in range(len(_cuda_states())):
        if f"torch.cuda.{k}" in state:
            torch.cuda.set_rng_state(state[f"torch.cuda.{k}"], k)


def check_rng_state(state: dict[str, Tensor]) -> None:
    """Try `state` on generators that nobody draws from; an exception of theirs where it does not fit."""
    _set(state, torch.Generator(), random.Random(), np.random.RandomState())


def _set(state: dict[str, Tensor], cpu: torch.Generator, python: Any, numpy: Any) -> None:
    cpu.set_state(state["torch.cpu"])
    python.setstate((3, tuple(state["python"].tolist()), None))
    position, has_gauss, gauss = state["numpy.rest"].tolist()
    keys = state["numpy.keys"].numpy().astype(np.uint32)
    numpy.set_state(("MT19937", keys, int(position), int(has_gauss), gauss))


def _cuda_states() -> list[Tensor]:
    ready = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_rng_state_all() if ready else []
