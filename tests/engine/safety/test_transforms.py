"""A model that torch.compile or torch.func transforms: plain PyTorch's bits, or refused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from tests.engine.compiled.cases import quick_inductor
from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import Plain, batch, by_forward, same_steps
from zbench.engine import Engine
from zbench.errors import UsageError

OFFLOADED = {"offload_optimizer": "cpu", "offload_schedule": "speculative"}
WHOLE: dict[str, Any] = {"zero_stage": 1, **OFFLOADED}
SHARDED: dict[str, Any] = {"zero_stage": 3}
LEAVES: dict[str, Any] = {"zero_stage": 3, "leaf_modules": ["Block"], "overlap_comm": False}


def rarely(*values: object) -> Any:
    """Return a case of `make check`: to compile takes seconds."""
    return pytest.param(*values, marks=pytest.mark.check)


class Block(nn.Module):
    """Has children, and a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(13, 20)
        self.b = nn.Linear(20, 13)
        self.scale = nn.Parameter(torch.ones(13))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.scale) * self.b(torch.tanh(self.a(x)))


class Net(nn.Module):
    """Blocks, and a read of a weight of one of them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last = nn.Linear(13, 7)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.last(torch.cos(x) * self.blocks[0].scale)  # type: ignore[operator]


@pytest.fixture(params=[WHOLE, SHARDED, LEAVES], ids=row_id)
def row(request: pytest.FixtureRequest) -> Any:
    """Return a specification."""
    return request.param


@pytest.fixture
def compiler() -> Iterator[None]:
    """Begin and end with nothing compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def compile_whole(model: nn.Module) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, backend="aot_eager")


def compile_in_place(model: nn.Module) -> Callable[[Tensor], Tensor]:
    model.compile(backend="aot_eager")
    return model


def compile_blocks(model: nn.Module) -> Callable[[Tensor], Tensor]:
    for block in model.blocks:  # type: ignore[union-attr]
        block.compile(backend="aot_eager")
    return model


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    ("row", "transform"),
    [
        rarely(WHOLE, compile_whole),
        (SHARDED, compile_whole),
        rarely(SHARDED, compile_in_place),
        rarely(LEAVES, compile_blocks),
    ],
    ids=lambda value: row_id(value) if isinstance(value, dict) else value.__name__,
)
def test_a_model_is_compiled_around_what_the_engine_does(
    engine: Engine, plain: Plain, transform: Callable[[nn.Module], Callable[[Tensor], Tensor]]
) -> None:
    use = transform(engine.model)

    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return by_forward(use if net is engine.model else net, x)  # type: ignore[arg-type]

    same_steps(engine, plain, 0, 1, 2, loss=loss)
    with torch.no_grad():
        assert torch.equal(use(batch(5)), plain.model(batch(5)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    same_steps(engine, plain, 3, loss=loss)


@pytest.mark.check
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("row", [SHARDED, rarely(WHOLE), rarely(LEAVES)], ids=row_id)
def test_a_whole_step_is_compiled_around_the_engine(engine: Engine, plain: Plain) -> None:
    @torch.compile(backend="aot_eager")
    def step(x: Tensor) -> Tensor:
        loss = by_forward(engine.model, x)
        engine.backward(loss)
        engine.step()
        engine.zero_grad()
        return loss * 2

    for number in range(3):
        loss = by_forward(plain.model, batch(number))
        loss.backward()
        plain.step()
        assert torch.equal(step(batch(number)), loss * 2)
    assert_same(engine.full_parameters(), plain.values())


def uses_of_torch_func(net: nn.Module, x: Tensor, values: dict[str, Tensor]) -> list[Tensor]:
    """Return gradients by parameters that are given, per sample too, by the input, and forward."""

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(net, parameters, (x,)).square().mean()

    gradients = [*grad(loss)(values, x).values(), *vmap(grad(loss), (None, 0))(values, x[:, None]).values()]
    return [*gradients, jacrev(lambda y: by_forward(net, y))(x), vmap(net)(x), *jvp(net, (x,), (x + 1,))]


def test_torch_func_has_its_values_and_leaves_the_next_step_as_it_was(engine: Engine, plain: Plain) -> None:
    same_steps(engine, plain, 0)
    values = {name: 1.5 * value for name, value in plain.values().items()}
    results, expected = (uses_of_torch_func(net, batch(1), values) for net in (engine.model, plain.model))
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    same_steps(engine, plain, 1, 2)


def test_torch_func_within_gathered_or_a_forward_names_the_remedy(
    row: dict[str, Any], engine: Engine, plain: Plain
) -> None:
    class Inside(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return grad(lambda y: y.square().sum())(x)

    def by_own_values() -> object:
        with engine.gathered(engine.model):
            named = dict(engine.model.named_parameters())
            return grad(lambda p: functional_call(engine.model, p, (batch(0),)).sum())(named)

    last = engine.model.last
    engine.model.last = nn.Sequential(engine.model.last, Inside())  # type: ignore[arg-type]
    for call in (by_own_values, lambda: engine.model(batch(0))):
        if row["zero_stage"] < 3:
            call()
            continue
        with pytest.raises(UsageError, match=r"torch.func.grad.*Call them outside"):
            call()
    engine.model.last = last
    same_steps(engine, plain, 0, 1)


@pytest.mark.check
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("row", [{"zero_stage": 1}, rarely({"zero_stage": 2, **OFFLOADED})], ids=row_id)
def test_inductor_compiles_a_model_as_it_would_without_an_engine(engine: Engine, plain: Plain) -> None:
    """Its own arithmetic is not eager PyTorch's: the twin is compiled, too."""
    uses = {id(net): torch.compile(net) for net in (engine.model, plain.model)}
    with quick_inductor():
        same_steps(engine, plain, 0, 1, 2, loss=lambda net, x: by_forward(uses[id(net)], x))  # type: ignore[arg-type]


def test_a_trace_follows_the_weights_or_is_refused(row: dict[str, Any], engine: Engine, plain: Plain) -> None:
    same_steps(engine, plain, 0)
    x = batch(1)
    traces: list[Any] = []
    for trace in TRACES:
        if row["zero_stage"] == 3:
            with pytest.raises(UsageError, match=r"gathered|full_parameters"):
                trace(engine.model, x)
        else:
            traces.append(trace(engine.model, x))
    same_steps(engine, plain, 1, 2)
    assert all(torch.equal(traced(x), plain.model(x)) for traced in traces)


TRACES: list[Callable[[nn.Module, Tensor], Any]] = [
    lambda net, x: export(net, (x,)).module(),
    lambda net, x: make_fx(net)(x),
    lambda net, x: torch.jit.trace(net, (x,)),
]
