"""Which trials find room beside one another, on a CPU and on shared GPUs."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from tests.making import make_record
from tests.nvml import Device, install
from tests.worker.conftest import trial as mlp
from zbench.launch.executor import MachineTask, RepeatTask
from zbench.launch.room import Room
from zbench.launch.yardsticks import Yardsticks
from zbench.spec.trial import TrialSpec

from .conftest import make_trial
from .test_heats import trials


def test_only_what_fits_beside_one_another_shares_a_heat() -> None:
    group = trials(4)
    rooms = Room()
    for trial, held in zip(group, (3000, 3000, 2000, 100), strict=True):
        record = make_record(trial_id=trial.trial_id, config=trial.config())
        memory = replace(record.memory, peak_rss_bytes=held // trial.run.world_size)
        rooms.observe(replace(record, memory=memory))
    assert rooms.share(group, lambda _: math.inf, 10_000) == group[:3], "8,000 bytes are 80 % of what is free"
    new = make_trial(sample="new", world_size=2)
    assert rooms.share([new, group[0]], lambda _: 2500, 10_000) == [new, group[0]]
    assert rooms.share([new, group[0]], lambda _: 2501, 10_000) == [new]
    assert rooms.share([group[0], new], lambda _: math.inf, 10_000) == [group[0]], (
        "what it needs is not known"
    )


def test_trials_share_a_gpu_if_what_their_ranks_reserved_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten ranks on four GPUs: three on the fullest one, with a context each. Nothing is known before."""
    free = (81_000, 30_000, 81_000, 81_000)
    install(monkeypatch, *(Device(f"GPU-{number}", mebibytes << 20) for number, mebibytes in enumerate(free)))
    on_gpus = trials(3, device="cuda", world_size=10, yardstick=["machine"])
    rooms = Room()
    free = 1e12
    assert rooms.share(on_gpus, lambda _: 1.0, free) == []
    for trial, reserved in zip(on_gpus, (3000, 2953, 2952), strict=True):
        record = make_record(trial_id=trial.trial_id, config=trial.config())
        memory = replace(record.memory, peak_reserved_bytes=reserved << 20)
        rooms.observe(replace(record, memory=memory))
    assert rooms.share(on_gpus, lambda _: math.inf, free) == [on_gpus[0], on_gpus[2]], "of 24,000 MiB"


def test_compute_alone_joins_on_a_gpu_where_a_trial_shows_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds the whole state, as stage 0 does; an engine of one's own may hold less whatever its stage."""
    gpu = Device("GPU-a", free=30_120 << 20)  # 80 % of it are four of 6,024 MiB
    install(monkeypatch, gpu)
    run = {"device": "cuda", "world_size": 1, "steps": 8}
    rooms = Room()
    whole, sharded, alike = (mlp({"zero_stage": stage}, run=run) for stage in (0, 3, 2))
    custom = mlp({"engine": "my.module:build"}, run=run)
    for trial in (whole, sharded, alike, custom):
        record = make_record(trial_id=trial.trial_id, config=trial.config())
        rooms.observe(replace(record, memory=replace(record.memory, peak_reserved_bytes=5000 << 20)))

    def yardsticks(heat: list[TrialSpec]) -> list[int]:
        tasks = Yardsticks(heat, 0, Counter(), has_room=rooms.has_room_for_alone(heat)).tasks
        return [sum(isinstance(task, kind) for task in tasks) for kind in (MachineTask, RepeatTask)]

    assert yardsticks([whole, sharded, alike]) == [1, 1]
    assert yardsticks([custom, sharded, alike]) == [1, 0]
    gpu.free = 30_119 << 20
    assert yardsticks([whole, sharded, alike]) == [1, 0]
