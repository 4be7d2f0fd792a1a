"""`engine.optimizer` in a training loop that was written for torch's: torch's result, or a refusal."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from tests.engine.plain import assert_same
from tests.engine.safety.plainly import Net, Plain, batch, build, by_forward, same_steps
from zbench.engine import Engine
from zbench.errors import UsageError


def scheduled(engine: Engine) -> LambdaLR:
    """Return a scheduler whose rate is another one at every step."""
    return LambdaLR(engine.optimizer, lambda number: 1 / (1 + number))


def train(engine: Engine, scheduler: LambdaLR, *numbers: int) -> None:
    for number in numbers:
        engine.backward(by_forward(engine.model, batch(number)))
        engine.optimizer.step()
        scheduler.step()


def test_the_optimizers_state_resumes_the_run(row: dict[str, Any], engine: Engine) -> None:
    scheduler = scheduled(engine)
    file = io.BytesIO()
    train(engine, scheduler, 0, 1)
    torch.save({"optimizer": engine.optimizer.state_dict(), "scheduler": scheduler.state_dict()}, file)
    train(engine, scheduler, 2, 3)
    file.seek(0)
    saved = torch.load(file)
    other = build(Net(), row)
    again = scheduled(other)
    other.optimizer.load_state_dict(saved["optimizer"])
    again.load_state_dict(saved["scheduler"])
    assert other.param_groups[0]["lr"] == pytest.approx(1e-3 / 3)
    train(other, again, 2, 3)
    assert_same(other.state_dict(), engine.state_dict())
    other.close()


def test_a_closure_is_called_and_its_loss_returned(engine: Engine, plain: Plain) -> None:
    for number in range(2):

        def closure(number: int = number) -> Tensor:
            engine.optimizer.zero_grad()
            loss = by_forward(engine.model, batch(number))
            engine.backward(loss)
            return loss

        loss = by_forward(plain.model, batch(number))
        loss.backward()
        with torch.no_grad():
            assert torch.equal(engine.optimizer.step(closure), loss)
        plain.step()
    assert_same(engine.full_parameters(), plain.values())


def other_state(engine: Engine) -> dict[str, Any]:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    net(batch(0)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


REFUSED: dict[str, tuple[Callable[[Engine], object], str]] = {
    "optimizer.param_groups": (lambda e: setattr(e.optimizer, "param_groups", []), r"group\['lr'\] = "),
    "optimizer.state": (lambda e: setattr(e.optimizer, "state", {}), "engine.load_state_dict"),
    "one state": (lambda e: e.optimizer.state[e.model.first.weight], r"engine.first_moments\(\)"),
    "another's state": (lambda e: e.optimizer.load_state_dict(other_state(e)), "engine.load_state_dict"),
}


@pytest.mark.parametrize(("use", "remedy"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_step_would_read_is_refused(
    engine: Engine, plain: Plain, use: Callable[[Engine], object], remedy: str
) -> None:
    same_steps(engine, plain, 0)
    with pytest.raises(UsageError, match=remedy):
        use(engine)
    same_steps(engine, plain, 1, 2)


def test_keys_that_the_engine_does_not_know_are_refused_at_the_next_step(
    engine: Engine, plain: Plain
) -> None:
    group = engine.optimizer.param_groups[0]
    OneCycleLR(engine.optimizer, 1e-3, total_steps=9)  # its keys are its own
    group.update(lr=1e-3, betas=(0.9, 0.999), maximize=False, fused=True, name="all")
    for key, text in (("maximize", "take it out"), ("weigth_decay", r"did you mean 'weight_decay'")):
        engine.backward(by_forward(engine.model, batch(0)))
        before = engine.full_parameters()
        group[key] = True
        with pytest.raises(UsageError, match=rf"param_groups\[0\].*{key}=True.*{text}"):
            engine.step()
        assert_same(engine.full_parameters(), before)
        del group[key]
        engine.zero_grad()
    engine.backward(by_forward(engine.model, batch(0)))
    group["amsgrad"] = True
    with pytest.raises(UsageError, match="expected the groups' parameters and amsgrad as they were"):
        engine.step()
    group["amsgrad"] = False
    engine.zero_grad()
    same_steps(engine, plain, 0, 1)
