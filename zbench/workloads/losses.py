"""How a model of one's own is called with a micro-batch."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from zbench.errors import UsageError
from zbench.workloads.contract import CONTRACT
from zbench.workloads.workload import Batch

LossFunction = Callable[[nn.Module, Batch], Any]


def forward_loss(model: nn.Module, batch: Batch) -> Any:
    """Return what `model(*batch)` returns."""
    return model(*batch)


def named_forward_loss(model: nn.Module, batch: Batch, *, names: tuple[str, ...]) -> Any:
    """Return what the model returns for a batch whose tensors are keyword arguments."""
    return model(**dict(zip(names, batch, strict=True)))


def language_model_loss(model: nn.Module, batch: Batch) -> Any:
    """Return the output of a transformers model on (tokens, targets): it shifts the labels by itself."""
    return model(input_ids=batch[0], labels=batch[0])


def own_loss(function: Callable[..., Any], *, names: tuple[str, ...]) -> LossFunction:
    """Return the user's function, which sees a batch as the data made it: a tuple, or a dict of tensors.

    Where it takes something else, such as (output, target), its mistake is told with the contract.
    """

    def compute(model: nn.Module, batch: Batch) -> Any:
        given = dict(zip(names, batch, strict=True)) if names else batch
        try:
            return function(model, given)
        except (TypeError, AttributeError) as error:
            called = getattr(function, "__name__", "the function")
            shown = f"{called}(model: {type(model).__name__}, batch: {type(given).__name__})"
            raise UsageError(
                f"workload.loss: {shown} failed with {type(error).__name__}: {error}; {CONTRACT}"
            ) from error

    return compute


def choose(
    model: nn.Module, batch: Batch, names: tuple[str, ...], own: Callable[..., Any] | None
) -> LossFunction:
    """Return how this model is called; UsageError, with the contract, where its forward takes no such batch.

    names: those of the batch's tensors where the data makes dicts. own: the user's loss function, if any.
    """
    if own is not None:
        return own_loss(own, names=names)
    if names:
        _check_signature(model, (), dict(zip(names, batch, strict=True)))
        return partial(named_forward_loss, names=names)
    if is_transformers_model(model):
        return language_model_loss
    _check_signature(model, batch, {})
    return forward_loss


def is_transformers_model(model: nn.Module) -> bool:
    """Whether this is a model of transformers; where that is not imported, nothing is."""
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(model, transformers.PreTrainedModel)


def _check_signature(model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(model.forward)
    except ValueError:  # written in C
        return
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        given = ", ".join(keywords) or f"{len(arguments)} tensors"
        raise UsageError(
            f"workload.model: {type(model).__name__}.forward{signature} does not take this micro-batch"
            f" ({given}): {error}; {CONTRACT}"
        ) from None
