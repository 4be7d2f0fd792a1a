"""Each model of the zoo is what the harness expects: deterministic, with gradients, in each of its dtypes."""

import importlib
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from tests.zoo.sampling import MODELS, OWN_MODELS, ZooModel

TESTED = (*OWN_MODELS, *(model for model in MODELS if model.name in ("bert", "resnet", "t5")))


@dataclass(frozen=True, slots=True)
class Step:
    """One forward and backward. gradients: of each trainable parameter, None where the step leaves it out."""

    batch: tuple[Tensor, ...]
    loss: Tensor
    gradients: dict[str, Tensor | None]


def _built(model: ZooModel) -> nn.Module:
    module, name = model.model.split(":")
    torch.manual_seed(0)
    built: nn.Module = getattr(importlib.import_module(module), name)(**model.options)
    return built.train()


def _batch(module: nn.Module, seed: int) -> tuple[Tensor, ...]:
    return module.make_batch(torch.Generator().manual_seed(seed), 3, 12)


def _step(model: ZooModel, dtype: torch.dtype) -> Step:
    module = _built(model).to(dtype)
    batch = tuple(value.to(dtype) if value.is_floating_point() else value for value in _batch(module, seed=1))
    torch.manual_seed(2)
    loss = module(*batch)
    loss.backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    return Step(batch, loss.detach(), gradients)


def _require_sound(step: Step) -> None:
    assert step.loss.shape == ()
    assert step.loss.isfinite()
    assert all(gradient is None or gradient.isfinite().all() for gradient in step.gradients.values())


def _bits(step: Step) -> list[bytes]:
    values = [step.loss, *(gradient for gradient in step.gradients.values() if gradient is not None)]
    return [value.numpy().tobytes() for value in values]


def _cases() -> list[object]:
    """Return the models as parameters: `make test` has the first of each kind, `make check` all others."""
    first = {model.kind: model for model in reversed(TESTED)}
    return [
        pytest.param(model, id=model.name, marks=() if first[model.kind] is model else pytest.mark.check)
        for model in TESTED
    ]


@pytest.mark.parametrize("model", _cases())
def test_model(model: ZooModel) -> None:
    if model.kind == "transformers":
        pytest.importorskip("transformers")
    module = _built(model)
    first, again, other = (_batch(module, seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))

    step = _step(model, torch.float32)
    _require_sound(step)
    absent = [name for name, gradient in step.gradients.items() if gradient is None]
    unused = getattr(module, "unused", ())
    assert [name for name in absent if not name.startswith(unused)] == []
    assert _bits(_step(model, torch.float32)) == _bits(step)

    exact = _step(model, torch.float64)
    _require_sound(exact)
    assert exact.loss.item() == pytest.approx(step.loss.item(), rel=1e-4, abs=1e-5)

    if model.bfloat16:
        _require_sound(_step(model, torch.bfloat16))
    else:
        with pytest.raises(RuntimeError):
            _step(model, torch.bfloat16)
