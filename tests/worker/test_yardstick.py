"""The machine's yardstick: two ranks, here as threads, on a CPU and, where there is one, on a device."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.making import make_trial
from tests.worker.conftest import DEVICES
from zbench import _native
from zbench.job.jobs import RankJob
from zbench.worker.yardstick import run_machine

T = TypeVar("T")


def on_two_ranks(function: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(2) as ranks:
        return list(ranks.map(function, range(2)))


@DEVICES
def test_every_part_is_measured_in_every_turn(tmp_path: Path, device: str) -> None:
    trial = make_trial(device=device, world_size=2, steps=8, threads_per_rank=1)

    def run(rank: int) -> None:
        place = f"file://{tmp_path}/rendezvous"
        result = str(tmp_path / "result.json")
        values = trial.model_dump(mode="json")
        run_machine(RankJob(values, rank, 2, place, str(tmp_path), str(tmp_path), result))

    on_two_ranks(run)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["version"] == _native.YARDSTICK_VERSION
    assert {part: len(seconds) for part, seconds in result["seconds"].items()} == {
        "compute": 2, "memory": 2, "meeting": 2,
    }  # fmt: skip
    assert all(second > 0 for seconds in result["seconds"].values() for second in seconds)


def test_each_rank_gets_the_seconds_of_the_slowest(tmp_path: Path) -> None:
    """And work that meets does so on all ranks: nobody is behind the meeting before all have come."""
    came = []

    def measure(rank: int) -> tuple[float, int]:
        stick = _native.Yardstick(str(tmp_path / "yardstick"), rank, 2, 1)
        seen = []

        def work() -> None:
            time.sleep(0.02 * rank)
            came.append(rank)
            stick.meet()
            seen.append(len(came))

        return stick.slowest(work), seen[0]

    (first, seen), (second, seen_too) = on_two_ranks(measure)
    assert first == second >= 0.02
    assert seen == seen_too == 2
