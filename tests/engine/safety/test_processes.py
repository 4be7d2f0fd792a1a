"""A rank's model in other processes: forks evaluate as in plain PyTorch, or hear that they are forks."""

import os
import pickle
import select
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.engine.plain import assert_same
from tests.engine.safety.plainly import build
from tests.engine.safety.ranked import WIDTH, net, train
from tests.engine.steps.agreeing import heard
from zbench.engine import Engine
from zbench.testing.ranks import RankPool

SECONDS = 60  # only end a hang


def answer_of_a_fork(call: Callable[[], Any]) -> Any:
    """Return what `call` returns in a fork of this process; AssertionError if the fork hangs."""
    ours, theirs = os.pipe()
    if not (pid := os.fork()):
        try:
            os.write(theirs, pickle.dumps(call()))
        finally:
            os._exit(0)
    os.close(theirs)
    if not select.select([ours], [], [], SECONDS)[0]:
        os.kill(pid, 9)
    with os.fdopen(ours, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    assert data, "the fork hangs"
    return pickle.loads(data)


def output(engine: Engine) -> list[float]:
    with torch.no_grad():
        rows: list[float] = engine.model(torch.ones(2, WIDTH)).flatten().tolist()
    return rows


def uses(engine: Engine) -> dict[str, str]:
    """Return what is heard of each use that trains, or that needs the other ranks."""
    loss = torch.ones((), requires_grad=True) * 1
    calls: dict[str, Callable[[], object]] = {
        "backward": lambda: engine.backward(loss),
        "step": engine.step,
        "load": lambda: engine.load_state_dict({}),
        "full": engine.full_parameters,
        "state": engine.state_dict,
        "close": engine.close,
    }
    return {name: heard(call) for name, call in calls.items()}


def in_a_fork(
    group: dist.ProcessGroup, row: dict[str, Any], at: str
) -> tuple[list[float] | str, list[float], dict[str, str], tuple[dict[str, Any], dict[str, Any]]]:
    """Return what a fork of this rank computes with the model, what the rank computes, what uses of the
    engine are refused in the fork; and the parameters after another step, without and with the fork.
    """
    engine, other = build(net(), row, group), build(net(), row, group)
    for each in (engine, other):
        train(each)
        if at == "within a step":
            each.backward(each.model(torch.ones(2, WIDTH)).square().mean())

    def evaluate() -> list[float] | str:
        try:
            return output(engine)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    rows = answer_of_a_fork(evaluate)
    texts = answer_of_a_fork(lambda: uses(engine))
    expected = output(engine)
    for each in (engine, other):
        if at == "within a step":
            each.step()
        train(each)
    values = other.full_parameters(), engine.full_parameters()
    for each in (engine, other):
        each.close()
    return rows, expected, texts, values


@pytest.mark.parametrize("at", ["between steps", "within a step"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_fork_evaluates_or_is_refused_and_the_rank_trains_on(
    ranks: RankPool, row: dict[str, Any], world_size: int, at: str
) -> None:
    for rows, expected, texts, values in ranks.run(world_size, f"{__name__}:in_a_fork", row, at):
        needs_ranks = world_size > 1
        if needs_ranks and row["zero_stage"] == 3:
            assert rows.startswith("UsageError: this process was forked from rank"), rows
            assert "copy.deepcopy(model)" in rows
        else:
            assert rows == expected
        refused = {name for name, text in texts.items() if text.startswith("UsageError: this process was")}
        assert refused >= {"backward", "step", "load"}
        assert all(text == "nothing" for name, text in texts.items() if name not in refused), texts
        assert texts["close"] == "nothing"
        assert_same(*values)
