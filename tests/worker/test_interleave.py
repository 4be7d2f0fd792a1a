"""A trial's part in taking turns: it waits outside its steps' times, and runs alone without a referee."""

from unittest.mock import MagicMock

import pytest

from zbench.worker import loop
from zbench.worker.interleave import Interleave
from zbench.worker.job import RankJob
from zbench.worker.loop import run_steps


def test_a_steps_time_begins_after_the_wait_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, meters = MagicMock(), MagicMock()
    seen.trainer.step.return_value = ([], None)
    seen.trainer.tokens.return_value = 1
    meters.traffic.take.return_value = {}
    monkeypatch.setattr(loop.dist, "all_reduce", lambda _: None)
    run_steps(seen.trainer, meters, warmup=1, timed=2, fence=seen.fence, after_step=lambda *_: None)
    calls = [name for name, _, _ in seen.mock_calls if name == "trainer.step" or name.startswith("fence.")]
    step, wait = ["fence.ready", "trainer.step", "fence.slowest"], "fence.interleave.wait"
    assert calls == [*step, wait, *step, wait, *step, "fence.interleave.over"]


@pytest.mark.parametrize("path", [None, "/nowhere/at/all"])
def test_without_a_referee_nothing_waits(path: str | None) -> None:
    met: list[None] = []
    for rank in (0, 1):
        taking = Interleave(RankJob({}, rank, 2, "", "", "", "", interleave=path), lambda: met.append(None))
        taking.wait()
        taking.over()
    assert len(met) == (0 if path is None else 8), (
        "all ranks meet alike, whether rank 0 finds the referee or not"
    )
