"""Whether what a state holds besides the parameters' values is as the engine writes it."""

from collections.abc import Mapping

from torch import Tensor

from zbench.errors import UsageError


def check_others(
    state: Mapping[str, Tensor], numbers: Mapping[str, Tensor], like: Mapping[str, Tensor]
) -> None:
    """Raise UsageError for a tensor that is unlike its namesake here; numbers: counts and hyperparameters."""
    for key, wanted in {**numbers, **like}.items():
        saved = state.get(key, wanted)
        if saved.shape != wanted.shape or saved.is_floating_point() != wanted.is_floating_point():
            raise UsageError(f"expected {key!r} of shape {list(wanted.shape)}, got {list(saved.shape)}")
        if key in numbers and not (saved.isfinite() & (saved >= 0)).all():
            raise UsageError(f"expected {key!r} to be finite and not negative; is the state damaged?")
