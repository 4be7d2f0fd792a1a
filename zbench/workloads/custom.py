"""The user's own model: `module:callable`, importable from the sweep's directory or the working directory.

`workload.CONTRACT` lists its methods. `make_batch` gets a seeded torch.Generator; the global generators of
torch, Python and NumPy are seeded, too.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from zbench.errors import UsageError
from zbench.workloads.models import chunked_cross_entropy
from zbench.workloads.workload import CONTRACT, Batch, drawn_by

_EXPECTED = "expected module:callable, where callable(**options) returns a torch.nn.Module"


def load_callable(name: str, base_dir: Path, *, key: str, expected: str) -> Callable[..., Any]:
    """Return the callable `module:callable`; `base_dir` is searched first. UsageError names `key` and what is
    `expected`."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{key}: {name!r} names nothing; {expected}")
    for directory in (str(Path.cwd()), str(base_dir.resolve())):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    try:
        value = importlib.import_module(module_name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UsageError(
            f"{key}: cannot load {name!r} ({type(error).__name__}: {error}); {expected}, importable from "
            f"{base_dir} or the current directory"
        ) from error
    if not callable(value):
        raise UsageError(f"{key}: {name!r} is of type {type(value).__name__}, not callable; {expected}")
    loaded: Callable[..., Any] = value
    return loaded


def model_factory(name: str, options: Mapping[str, Any], base_dir: Path) -> Callable[[], nn.Module]:
    """Return the factory of the user's model. UsageError if it cannot be loaded or called, or returns no
    module."""
    build = load_callable(name, base_dir, key="workload.model", expected=_EXPECTED)

    def make() -> nn.Module:
        try:
            model = build(**options)
        except TypeError as error:
            raise UsageError(
                f"workload.model: {name}(**{dict(options)}) failed: {error}; {_EXPECTED}"
            ) from error
        if not isinstance(model, nn.Module):
            raise UsageError(f"workload.model: {name} returned a {type(model).__name__}; {_EXPECTED}")
        lazy = [key for key, value in model.named_parameters() if is_lazy(value)]
        if lazy:
            raise UsageError(
                f"workload.model: {name} has parameters without a shape ({lazy[0]}): call the model once on a"
                " batch before you return it"
            )
        return model

    return make


class ModelMadeBatches:
    """Samples from the model's own `make_batch`."""

    def __init__(self, make: Callable[..., Any], *, sequence_length: int) -> None:
        self._make, self._length = make, sequence_length

    def draw(self, seed: int, samples: int) -> Batch:
        with drawn_by(seed):
            batch = self._make(torch.Generator().manual_seed(seed), samples, self._length)
        if not isinstance(batch, tuple) or not all(isinstance(x, Tensor) for x in batch):
            raise UsageError(
                "workload.model: expected make_batch(generator, micro_batch_size, sequence_length) to return "
                f"a tuple of tensors, got {type(batch).__name__}"
            )
        return batch


LossFunction = Callable[[nn.Module, Batch], Any]


def language_model_loss(model: nn.Module, batch: Batch) -> Any:
    """Return the output of a transformers model on (tokens, targets): it shifts the labels by itself."""
    return model(input_ids=batch[0], labels=batch[0])


def chunked_language_model_loss(model: nn.Module, batch: Batch, *, chunks: int) -> Tensor:
    """Return the loss of a transformers model on tokens, with the logits of one chunk of them at once."""
    tokens = batch[0]
    inner = model.base_model
    head = model.get_output_embeddings()  # type: ignore[operator]
    hidden = inner(input_ids=tokens).last_hidden_state  # type: ignore[operator]
    return chunked_cross_entropy(head, hidden[:, :-1], tokens[:, 1:], chunks)


def own_loss(function: Callable[..., Any], *, names: tuple[str, ...]) -> LossFunction:
    """Return the user's loss function, called with a batch as the data made it: a tuple or a dict of tensors.

    UsageError with the contract if it takes other arguments, such as (output, target).
    """

    def compute(model: nn.Module, batch: Batch) -> Any:
        inputs = dict(zip(names, batch, strict=True)) if names else batch
        try:
            return function(model, inputs)
        except (TypeError, AttributeError) as error:
            called = getattr(function, "__name__", "the function")
            shown = f"{called}(model: {type(model).__name__}, batch: {type(inputs).__name__})"
            raise UsageError(
                f"workload.loss: {shown} failed with {type(error).__name__}: {error}; {CONTRACT}"
            ) from error

    return compute


def choose(
    model: nn.Module, batch: Batch, names: tuple[str, ...], user_loss: Callable[..., Any] | None
) -> LossFunction | None:
    """Return the function that computes the loss; None: call the model with the batch as its arguments.

    names: keys of the batch, if the data makes dicts; else empty. user_loss: the user's own, if any.
    UsageError with the contract if the model's forward does not take such a batch.
    """
    if user_loss is not None:
        return own_loss(user_loss, names=names)
    if names:
        _check_signature(model, (), dict(zip(names, batch, strict=True)))
        return lambda model, batch: model(**dict(zip(names, batch, strict=True)))
    transformers = sys.modules.get("transformers")  # if not imported, no model is a transformers model
    if transformers is not None and isinstance(_unwrapped(model), transformers.PreTrainedModel):
        return language_model_loss
    _check_signature(model, batch, {})
    return None


def _unwrapped(model: nn.Module) -> nn.Module:
    """Return the model that PEFT's adapters wrap; any other model unchanged."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel | peft.PeftMixedModel):
        return model
    base: nn.Module = model.get_base_model()
    return base


def _check_signature(model: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(model.forward)
    except ValueError:  # written in C
        return
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        inputs = ", ".join(keywords) or f"{len(arguments)} tensors"
        raise UsageError(
            f"workload.model: {type(model).__name__}.forward{signature} does not take this micro-batch"
            f" ({inputs}): {error}; {CONTRACT}"
        ) from None
