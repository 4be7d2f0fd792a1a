"""A round in heats: who takes turns with whom, and what their records say."""

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.worker.conftest import ROOT
from tests.worker.conftest import trial as mlp
from tests.world import OptionsScript, World, failed, local_runner, told_by
from zbench.launch.executor import Attempt, OnLine, RepeatTask, Task, Vacancy
from zbench.launch.sweep import SweepPlan, run_sweep
from zbench.launch.trial import TrialRunner
from zbench.launch.yardsticks import Yardsticks
from zbench.record.record import Record
from zbench.record.store import RunDirectory
from zbench.spec.expand import Expansion
from zbench.spec.trial import TrialSpec

from .conftest import make_trial
from .fake_worker import TIMING


def swept(tmp_path: Path, trials: list[TrialSpec], **plan: object) -> tuple[list[Record], World]:
    world = World(takes_turns=True, vacancy=Vacancy(1, psutil.virtual_memory().available))
    with RunDirectory.create(tmp_path, "sweep", spec={}, environment={}) as directory:
        run_sweep(SweepPlan(Expansion(trials, []), **plan), directory, lambda: world)
        return directory.records(), world


def ids_in(heat: list[RepeatTask]) -> set[str]:
    return {task.trial.trial_id for task in heat}


def in_turns(trial: TrialSpec, **run: object) -> TrialSpec:
    keys = {"steps": 8, "yardstick": "none", "repeats": 1} | run
    return trial.model_copy(update={"run": trial.run.model_copy(update=keys)})


def trials(count: int, **run: object) -> list[TrialSpec]:
    return [in_turns(make_trial(sample=number), **run) for number in range(count)]


@pytest.mark.parametrize(("count", "most", "sizes"), [(11, 8, [6, 5]), (7, 3, [3, 2, 2])])
def test_heats_of_a_round_are_as_large_as_one_another(
    tmp_path: Path, count: int, most: int, sizes: list[int]
) -> None:
    records, world = swept(tmp_path, trials(count, heat=most, repeats=2))
    assert [len(heat) for heat in world.heats] == sizes * 2
    assert len({(record.trial_id, record.repeat) for record in records}) == 2 * count
    first, second = ([t.trial.trial_id for t in heat] for heat in (world.heats[0], world.heats[len(sizes)]))
    assert first != second, "each round is drawn anew"


def test_the_fastest_share_every_heat_after_the_first(tmp_path: Path) -> None:
    seconds = [0.1 * (9 - number) for number in range(9)]
    timings = [{"timing": TIMING | {"median_step_s": s, "step_seconds": [s]}} for s in seconds]
    participants = [in_turns(make_trial(result=timing), heat=3, repeats=3) for timing in timings]
    _, world = swept(tmp_path, participants)
    fastest = {trial.trial_id for trial in participants[-3:]}
    for heat in (world.heats[3], world.heats[6]):
        assert ids_in(heat) == fastest


def test_those_of_one_workload_share_a_heat(tmp_path: Path) -> None:
    """Five workloads of three, which differ in model, ranks, threads and dtype; a heat has whole ones."""
    groups = [
        [in_turns(mlp(engine | {"reduce_bucket_size": n}, run=run), repeats=3) for n in (100, 200, 300)]
        for engine, run in (
            ({}, {}), ({"dtype": "bfloat16"}, {}), ({}, {"world_size": 3}), ({}, {"threads_per_rank": 2}),
            ({"gradient_clipping": 1.0}, {}),
        )
    ]  # fmt: skip
    _, world = swept(tmp_path, [trial for group in groups for trial in group])
    assert [len(heat) for heat in world.heats] == [6, 6, 3] * 3
    for heat in world.heats:
        ids = ids_in(heat)
        assert {len(ids & {trial.trial_id for trial in group}) for group in groups} == {0, 3}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"order": "rounds"}, ""),
        ({"steps": 3}, "a turn has 4 steps; raise run.steps"),
    ],
    ids=["rounds", "few steps"],
)
def test_what_cannot_take_turns_runs_alone_and_says_so_beside_others(
    tmp_path: Path, keys: dict[str, object], says: str
) -> None:
    alone = trials(3, **keys)
    records, world = swept(tmp_path / "alone", alone)
    assert world.heats == []
    assert all(record.outcome == "ok" and record.heat is None for record in records)
    assert not any(record.warnings for record in records), "nobody takes turns here"
    others = [in_turns(make_trial(sample=f"other {number}")) for number in range(2)]
    records, world = swept(tmp_path / "beside", [*alone, *others])
    assert [len(heat) for heat in world.heats] == [2]
    warned = {record.trial_id: record.warnings for record in records if record.warnings}
    assert warned == {trial.trial_id: [f"ran alone, not in turns: {says}"] for trial in alone if says}


def test_who_finds_no_room_beside_others_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heat that cannot fit: what each of both needs is 2,000 bytes, and there are 3,200."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=4000))
    records, world = swept(tmp_path, trials(2, repeats=2))
    assert world.heats == []
    for (warning,) in (record.warnings for record in records):
        assert warning.startswith("ran alone, not in turns: it and others need more than 80 % of")
        assert "free some, or set `run.order: rounds`" in warning


@pytest.mark.parametrize(("count", "joins"), [(1, [2, 5]), (3, [0, 1, 2, 3, 4, 5])])
def test_fewer_than_three_have_compute_alone_in_a_part_of_their_heats(count: int, joins: list[int]) -> None:
    """As often as it takes a quarter of all repeats at most."""
    sharing = [mlp({"zero_stage": stage}) for stage in range(count)]
    credit = Counter[str]()
    heats = [Yardsticks(sharing, repeat, credit) for repeat in range(6)]
    having = [n for n, heat in enumerate(heats) if any(isinstance(task, RepeatTask) for task in heat.tasks)]
    assert having == [n for n, heat in enumerate(heats) if not heat.leaves_out_alone] == joins


@pytest.mark.parametrize(("yardstick", "sizes"), [(["machine"], [1, 1]), (["alone"], [])])
def test_one_configuration_takes_turns_with_the_machines_yardstick(
    tmp_path: Path, yardstick: object, sizes: list[int]
) -> None:
    records, world = swept(tmp_path, trials(1, repeats=2, yardstick=yardstick))
    assert [len(heat) for heat in world.heats] == sizes
    assert [(record.outcome, record.warnings) for record in records] == [("ok", [])] * 2


def test_that_a_yardstick_fails_is_told_once_and_fails_nobody(tmp_path: Path) -> None:
    script = OptionsScript()
    told = list[str]()
    script.machine = failed("crashed", "the CUDA kernels were not built")
    world = World(script, takes_turns=True)
    with TrialRunner(world, tmp_path, on_event=told_by(told.append)) as runner:
        for repeat in range(2):
            heat = runner.run_heat(trials(2, yardstick=["machine"]), repeat)
            assert [record.outcome for record in heat] == ["ok", "ok"]
    assert told == ["a yardstick could not run: the CUDA kernels were not built"]


def test_a_repeat_that_was_killed_in_its_heat_runs_once_more_alone(tmp_path: Path) -> None:
    options = OptionsScript()
    told = list[str]()
    kills = iter([True])

    def script(task: Task, on_line: OnLine) -> Attempt:
        if isinstance(task, RepeatTask) and next(kills, False):
            return failed("killed", "rank 0 was killed from outside by SIGKILL")
        return options(task, on_line)

    world = World(script, takes_turns=True)
    with TrialRunner(world, tmp_path, on_event=told_by(told.append)) as runner:
        heat = runner.run_heat(trials(3))
    assert [record.outcome for record in heat] == ["ok"] * 3
    assert [len(batch.tasks) for batch in world.batches] == [1, 1, 1, 3, 1], (
        "three references, the heat, and one again"
    )
    assert told == ["rank 0 was killed from outside by SIGKILL; running it again"]


def heat_of(runner: TrialRunner, participants: list[TrialSpec]) -> dict[str, Record]:
    return {record.trial_id: record for record in runner.run_heat(participants, lot=random.Random(1))}


def comparable(record: Record) -> tuple[object, ...]:
    assert record.memory is not None
    peaks = (record.memory.peak_device_bytes, record.memory.peak_host_bytes, record.memory.by_category)
    return record.outcome, peaks, record.traffic, record.correctness, record.counts.get("operators")


@pytest.mark.check
@pytest.mark.timeout(300)
def test_peaks_traffic_and_verdicts_are_those_of_a_trial_alone(tmp_path: Path) -> None:
    """Three real engines of two ranks in turns, and the same ones after another."""
    engines = [{"zero_stage": 0}, {"zero_stage": 2}, {"zero_stage": 1, "offload_optimizer": "cpu"}]
    participants = [mlp(engine, run={"steps": 8}) for engine in engines]
    with local_runner(tmp_path, ROOT, rerun_disturbed=False) as runner:
        alone = {trial.trial_id: runner.run(trial) for trial in participants}
        heat = heat_of(runner, participants)
    assert len({record.heat.name for record in heat.values()}) == 1
    for trial_id, record in heat.items():
        assert comparable(record) == comparable(alone[trial_id])
        assert alone[trial_id].heat is None
        assert len(record.timing.step_seconds) == 6, "of two turns of four steps the first is not timed"
        assert len(record.heat.turn_seconds) == len(record.heat.alone) == 2
        assert set(record.heat.machine) == {"compute", "memory", "meeting"}
        quotients = [a / b for a, b in zip(record.heat.alone, record.heat.turn_seconds, strict=True)]
        assert record.timing.of_compute == pytest.approx((quotients[0] * quotients[1]) ** 0.5)


WATCHING = """
import os
import time
from pathlib import Path
from zbench.engine import build_engine as built

PIDS = Path(__file__).with_name("pids")

def is_still(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    except OSError:
        return True

def build_engine(model, spec, process_group=None, *, instruments=None):
    engine = built(model, spec, process_group)
    step = engine.step
    (PIDS / f"{spec.reduce_bucket_size}-{os.getpid()}").touch()

    def stepping():
        names = [path.name.split("-") for path in PIDS.iterdir()]
        others = [pid for size, pid in names if size != str(spec.reduce_bucket_size)]
        give_up = time.monotonic() + 60
        while not all(map(is_still, others)):
            if time.monotonic() > give_up:
                raise RuntimeError("others are awake")
            time.sleep(0.01)
        return step()

    engine.step = stepping
    return engine
"""


@pytest.mark.check
@pytest.mark.timeout(300)
def test_while_one_works_the_processes_of_the_others_are_stopped(tmp_path: Path) -> None:
    """Else gloo's threads wake up a hundred times a second on the cores of the one that is timed."""
    (tmp_path / "own.py").write_text(WATCHING)
    (tmp_path / "pids").mkdir()
    engines = [{"engine": "own:build_engine", "reduce_bucket_size": size} for size in (1000, 2000)]
    with local_runner(tmp_path / "run", tmp_path, rerun_disturbed=False) as runner:
        records = heat_of(runner, [mlp(engine, run={"steps": 8}) for engine in engines])
    assert [record.outcome for record in records.values()] == ["ok", "ok"]
    assert len(list((tmp_path / "pids").iterdir())) >= 4
