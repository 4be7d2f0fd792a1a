"""Which trials find room beside one another, on a CPU and on shared GPUs."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import make_record
from tests.nvml import Device, install
from tests.worker.conftest import trial as mlp
from zbench.launch import room
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


@pytest.mark.parametrize(
    ("driver", "hidden", "device", "is_cpu"),
    [
        (True, False, "auto", False),
        (True, True, "auto", True),
        (False, False, "auto", True),
        (True, True, "cuda", False),
        (True, False, "cpu", True),
    ],
)
def test_a_trial_is_on_the_cpu_where_no_gpu_is_to_be_seen(
    driver: bool, hidden: bool, device: str, is_cpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, *[Device("GPU-0", 1 << 30)] * driver)
    monkeypatch.setattr(room, "_GPU_DRIVERS", (tmp_path if driver else tmp_path / "none",))
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert room.uses_cpu(device) is is_cpu


@pytest.mark.parametrize(("context", "fits"), [(None, False), (500 << 20, True), (2000 << 20, False)])
def test_a_context_takes_what_was_measured_of_it(
    context: int | None, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 % of the GPU are 8,000 MiB, for two of 3,400 and their contexts: 1 GiB each where none is known."""
    install(monkeypatch, Device("GPU-a", free=10_000 << 20))
    pair = trials(2, device="cuda", world_size=1)
    room = Room()
    for trial in pair:
        record = make_record(trial_id=trial.trial_id, config=trial.config())
        memory = replace(record.memory, peak_reserved_bytes=3400 << 20, context_bytes=context)
        room.observe(replace(record, memory=memory))
    assert (room.share(pair, lambda _: math.inf, 1e12) == pair) == fits


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
