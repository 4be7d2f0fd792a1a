"""No healthy variant of an ordinary training program is accused, and Hogwild is not judged at all.

The kinds are those on which TrainCheck (OSDI 2025) counts its false alarms.
"""

import json
from pathlib import Path

import pytest

from tests.programs.table import HOGWILD, PROGRAMS, Program
from tests.shared_processes import SharedProcesses
from tests.world import local_runner
from zbench.record.record import Record
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep

IN_CHECK = {"graph_convolution", "mnist_rnn", "hogwild"}
SHORT, LONG = 10, 60


def records_of(
    program: Program, steps: int, folder: Path, patch: pytest.MonkeyPatch, processes: SharedProcesses
) -> list[Record]:
    """Return the records of a program's sweep."""
    processes.lend_by(patch)
    (folder / "run").mkdir()
    (folder / "sweep.yaml").write_text(json.dumps(program.sweep(steps)))
    trials = expand(load_sweep(folder / "sweep.yaml", environ={})).trials
    with local_runner(folder / "run", folder, rerun_disturbed=False) as runner:
        return [runner.run(trial) for trial in trials]


def cases(*programs: Program) -> list[object]:
    """Return parameters: `make check` has the short sweeps of three programs."""
    return [
        pytest.param(
            program,
            steps,
            id=f"{program.name}-{steps}",
            marks=pytest.mark.check if (program.name in IN_CHECK and steps == SHORT) else pytest.mark.soak,
        )
        for program in programs
        for steps in (SHORT, LONG)
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("program", "steps"), cases(*(p for p in PROGRAMS if p is not HOGWILD)))
def test_a_healthy_program_is_not_accused(
    program: Program,
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared_processes: SharedProcesses,
) -> None:
    records = records_of(program, steps, tmp_path, monkeypatch, shared_processes)
    assert [record.outcome for record in records] == ["ok"] * len(program.variants), records[0].error
    assert not {record.correctness.verdict for record in records} & {"drifted", "wrong"}, [
        (record.axes, record.correctness) for record in records
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("program", "steps"), cases(HOGWILD))
def test_a_program_whose_result_is_chance_is_unchecked_with_a_reason(
    program: Program,
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared_processes: SharedProcesses,
) -> None:
    for record in records_of(program, steps, tmp_path, monkeypatch, shared_processes):
        assert record.correctness.verdict == "unchecked", record.correctness
        assert record.warnings, "the reason"
