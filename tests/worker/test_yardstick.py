"""The machine's yardstick: two ranks, here as threads, on a CPU and, where there is one, on a device."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.making import make_trial
from tests.worker.conftest import DEVICES
from zbench import _native
from zbench.job.jobs import RankJob
from zbench.worker.yardstick import run_machine


@DEVICES
def test_every_part_is_measured_in_every_turn(tmp_path: Path, device: str) -> None:
    trial = make_trial(device=device, world_size=2, steps=8, threads_per_rank=1)

    def run(rank: int) -> None:
        place = f"file://{tmp_path}/rendezvous"
        result = str(tmp_path / "result.json")
        values = trial.model_dump(mode="json")
        run_machine(RankJob(values, rank, 2, place, str(tmp_path), str(tmp_path), result))

    with ThreadPoolExecutor(2) as ranks:
        list(ranks.map(run, range(2)))
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["version"] == _native.YARDSTICK_VERSION
    assert {part: len(seconds) for part, seconds in result["seconds"].items()} == {
        "compute": 2, "memory": 2, "meeting": 2,
    }  # fmt: skip
    assert all(second > 0 for seconds in result["seconds"].values() for second in seconds)
