"""A core is rebuilt between two steps: beside the old one, which stays if that fails, on every rank."""

from typing import Any

import pytest

from tests.engine.ranks import RankPool
from tests.engine.safety.faults import ALLOCATIONS, COLLECTIVES, Exchange, Faults, build_watched
from tests.engine.safety.plainly import SMALL, Plain, assert_same, batch, row_id, step
from tests.engine.safety.test_freezing import Layers, freeze
from zbench.engine import Engine
from zbench.engine.optimizer.offload_ratio import MeasuredRatio
from zbench.spec.engine import EngineSpec

RANKED = "tests.engine.safety.rebuilding:"
ROWS = [
    {"zero_stage": 0},
    {"zero_stage": 1, "offload_optimizer": "cpu"},
    {"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"},
    {"zero_stage": 3, "param_persistence_threshold": 30},
    {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"},
]
some_rows = pytest.mark.parametrize("row", ROWS, ids=row_id)


def watched_pair(
    row: dict[str, Any], trained: tuple[int, ...]
) -> tuple[Engine, Plain, Faults, list[Exchange]]:
    faults = Faults(*ALLOCATIONS, *COLLECTIVES)
    spec = EngineSpec.model_validate({**SMALL, **row})
    engine, exchanged = build_watched(Layers(trained), spec, faults)
    return engine, Plain(Layers(trained)), faults, exchanged


@some_rows
def test_a_rebuild_that_fails_anywhere_leaves_the_engine_as_it_was(row: dict[str, Any]) -> None:
    engine, plain, faults, exchanged = watched_pair(row, (3,))
    step(engine, plain, 0)
    while not exchanged:
        faults.at = 0 if faults.at is None else faults.at + 1
        for net in (engine.model, plain.model):
            freeze(net, (2, 3))
        losses = [net(batch(1)).square().mean() for net in (engine.model, plain.model)]
        try:
            engine.backward(losses[0])
        except MemoryError:
            for net in (engine.model, plain.model):
                freeze(net, (3,))
            assert_same(engine.full_parameters(), plain.values())
            step(engine, plain, 2)
    losses[1].backward()
    engine.step()
    plain.step()
    assert_same(engine.full_parameters(), plain.values())
    assert faults.at is not None
    assert faults.at > 3, "so many calls failed"
    assert exchanged == [(0, False, False)], "no call can fail any more when a core is put in place"
    engine.close()


@some_rows
def test_a_core_is_exchanged_before_the_step_has_a_gradient(row: dict[str, Any]) -> None:
    engine, plain, _, exchanged = watched_pair(row, (3,))
    for number, trained in enumerate([(3,), (2, 3), (2, 3), (1, 2, 3), (0, 1, 2, 3)]):
        for net in (engine.model, plain.model):
            freeze(net, trained)
        step(engine, plain, number)
        assert_same(engine.full_parameters(), plain.values())
    assert exchanged == [(0, False, False)] * 3
    engine.close()


def test_a_step_is_taken_though_the_decided_ratio_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(ratio: MeasuredRatio, *_: object) -> bool:
        ratio.value = 0.5
        return True

    monkeypatch.setattr(MeasuredRatio, "decide", decide)
    row = {"zero_stage": 1, "offload_optimizer": "cpu", "offload_ratio": "auto"}
    engine, plain, faults, exchanged = watched_pair(row, (3,))
    faults.at = 2
    step(engine, plain, 0)
    loss = engine.model(batch(1)).square().mean()
    for call in (lambda: engine.backward(loss), engine.full_parameters):
        with pytest.raises(MemoryError):
            call()
    faults.at = None
    assert_same(engine.full_parameters(), plain.values())
    engine.backward(loss)
    plain.model(batch(1)).square().mean().backward()
    engine.step()
    plain.step()
    assert_same(engine.full_parameters(), plain.values())
    assert exchanged
    engine.close()


@some_rows
def test_a_context_stays_open_across_a_rebuild(row: dict[str, Any]) -> None:
    engine, plain, *_ = watched_pair(row, (3,))
    with engine.gathered(engine.model):
        for net in (engine.model, plain.model):
            freeze(net, (0, 3))
        step(engine, plain, 0)
        assert_same({n: p.detach().clone() for n, p in engine.model.named_parameters()}, plain.values())
    step(engine, plain, 1)
    assert_same(engine.full_parameters(), plain.values())
    engine.close()


@some_rows
def test_memory_that_one_rank_lacks_keeps_all_ranks_from_rebuilding(
    ranks: RankPool, row: dict[str, Any]
) -> None:
    first, second = ranks.run(2, RANKED + "lacks_memory", row)
    assert len(first) == len(second) > 2
    assert all(s.startswith("UsageError: nothing has changed") and "rank 1: Memory" in s for s in first)
    assert all(s.startswith("MemoryError") for s in second)


@some_rows
@pytest.mark.parametrize("when", ["at first", "later"])
def test_ranks_that_train_other_parameters_stop_and_name_them(
    ranks: RankPool, row: dict[str, Any], when: str
) -> None:
    for said in ranks.run(2, RANKED + "other_layers", row, when):
        assert said.startswith("RanksDisagreeError: expected the same trained parameters"), said
        assert "rank 0: '1.weight' in group 0" in said or "rank 0: '1.bias' in group 0" in said
        assert "rank 1: '2.weight' in group 0" in said or "rank 1: '2.bias' in group 0" in said
