"""An engine that several threads call: the result of plain PyTorch, or a refusal by name."""

import sys
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.plain import assert_same
from tests.engine.safety.plainly import Plain, batch, by_forward, same_steps
from tests.engine.steps.agreeing import heard
from zbench.engine import Engine

DEEP = 12


class Net(nn.Module):
    """Many layers, so that backwards overlap."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Linear(13, 24)
        self.inner = nn.Sequential(*(nn.Linear(24, 24) for _ in range(DEEP)))
        self.last = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.inner(torch.tanh(self.first(x)))))
        return output


@pytest.fixture(autouse=True)
def _frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(*calls: Callable[[], object]) -> list[str]:
    """Return what each call raises, all in threads of their own."""
    texts = [""] * len(calls)

    def run(k: int) -> None:
        texts[k] = heard(calls[k])

    threads = [Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return texts


def loss_with(net: nn.Module, number: int, act: Callable[[], object]) -> Tensor:
    """Return a loss whose backward calls `act` about halfway."""
    middle = net.get_submodule(f"inner.{DEEP // 2}")
    handle = middle.register_forward_hook(
        lambda m, a, out: out.register_hook(lambda g: act() and None) and None
    )
    loss = by_forward(net, batch(number))
    handle.remove()
    return loss


@pytest.mark.parametrize("engine", [{"gradient_accumulation_steps": 2}], ids=["micro"], indirect=True)
def test_backwards_in_two_threads_add_up_as_in_plain_pytorch(engine: Engine, plain: Plain) -> None:
    for number in range(0, 20, 2):
        losses = [by_forward(engine.model, batch(number + k)) for k in (0, 1)]
        texts = in_threads(*(lambda loss=loss: engine.backward(loss) for loss in losses))
        assert texts == ["nothing", "nothing"]
        engine.step()
        for k in (0, 1):
            (by_forward(plain.model, batch(number + k)) / 2).backward()
        plain.step()
    assert_same(engine.full_parameters(), plain.values())


def test_a_step_waits_for_the_backward_of_another_thread(engine: Engine, plain: Plain) -> None:
    texts: list[str] = []
    threads: list[Thread] = []

    def begin_to_step() -> None:
        threads.append(Thread(target=lambda: texts.append(heard(engine.step))))
        threads[0].start()

    engine.backward(loss_with(engine.model, 0, begin_to_step))
    threads[0].join()
    assert texts == ["nothing"]
    by_forward(plain.model, batch(0)).backward()
    plain.step()
    same_steps(engine, plain, 1)


@pytest.mark.parametrize("use", ["backward", "step", "zero_grad"])
def test_a_call_within_a_backward_is_refused(engine: Engine, plain: Plain, use: str) -> None:
    other = by_forward(engine.model, batch(1))
    call = (lambda: engine.backward(other)) if use == "backward" else getattr(engine, use)
    with pytest.raises(ValueError, match="got a call within another"):
        engine.backward(loss_with(engine.model, 0, call))
    engine.zero_grad()
    same_steps(engine, plain, 0, 1)


def test_a_backward_of_torchs_in_another_thread_is_refused(engine: Engine, plain: Plain) -> None:
    texts: list[str] = []
    other = by_forward(engine.model, batch(1))
    engine.backward(loss_with(engine.model, 0, lambda: texts.extend(in_threads(other.backward))))
    assert texts[0].startswith("UsageError"), texts
    engine.step()
    by_forward(plain.model, batch(0)).backward()
    plain.step()
    same_steps(engine, plain, 1)


@pytest.mark.parametrize("during", ["forward", "backward"])
def test_a_forward_in_another_thread_is_right_or_refused(
    engine: Engine, plain: Plain, row: dict[str, Any], during: str
) -> None:
    same_steps(engine, plain, 0)
    expected = plain.model(batch(5))
    texts: list[str] = []

    def evaluate() -> None:
        with torch.no_grad():
            assert torch.equal(engine.model(batch(5)), expected)

    def meanwhile(*_: object) -> None:
        handle.remove()
        texts.extend(in_threads(evaluate))

    handle = engine.model.get_submodule("inner.3").register_forward_hook(meanwhile)
    if during == "backward":
        handle.remove()
        loss = loss_with(engine.model, 1, meanwhile)
    else:
        loss = by_forward(engine.model, batch(1))
    engine.backward(loss)
    engine.step()
    if row["zero_stage"] == 3:
        assert texts[0].startswith("UsageError: another thread uses the model now"), texts
    else:
        assert texts == ["nothing"]
    by_forward(plain.model, batch(1)).backward()
    plain.step()
    same_steps(engine, plain, 2)
