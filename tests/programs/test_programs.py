"""No healthy variant of an ordinary training program is accused, and Hogwild is not judged at all.

The kinds are those on which TrainCheck (OSDI 2025) counts its false alarms.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.shared_processes import SharedProcesses
from tests.world import local_runner
from zbench.record.record import Record
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep

FOLDER = Path(__file__).parent
AXIS = "param_persistence_threshold"  # borrowed: an axis is a key of the engine, and scripts ignore this key


@dataclass(frozen=True, slots=True)
class Program:
    """A training program of a file in this folder.

    checkpoint: what it saves in its output directory. variants: those that are compared with variant 0.
    world_size: the number of ranks, which torchrun starts if there are several.
    """

    file: str
    name: str
    checkpoint: str
    variants: tuple[int, ...] = (1, 2)
    world_size: int = 1

    @property
    def command(self) -> str:
        """The template of the command."""
        launcher = "python" if self.world_size == 1 else TORCHRUN
        script = shlex.quote(str(FOLDER / f"{self.file}.py"))
        return f"{launcher} {script} {self.name} --steps {{steps}} --variant {{{AXIS}}} --output {{output}}"

    def sweep(self, steps: int = 10) -> dict[str, Any]:
        """Return the document of a sweep: two steps of warm-up, and `steps` that are timed."""
        return {
            "name": self.name,
            "workload": {
                "command": self.command,
                "step_times": {"jsonl": "{output}/steps.jsonl"},
                "checkpoint": f"{{output}}/{self.checkpoint}",
            },
            "run": {
                "world_size": self.world_size,
                "warmup_steps": 2,
                "steps": steps,
                "repeats": 1,
                "threads_per_rank": 1,
                "timeout": "600s",
            },
            "engine": {AXIS: 0},
            "axes": {AXIS: list(self.variants)},
        }


TORCHRUN = "python -m torch.distributed.run --nproc-per-node {world_size} --master-port {port}"
HOGWILD = Program("processes", "hogwild", "hogwild.pt", variants=(0, 1))  # each run has bits of its own
PROGRAMS = (
    Program("control", "actor_critic", "actor_critic.pth"),
    Program("pictures", "autocast", "model.safetensors"),
    Program("generation", "dcgan", "gan.pth"),
    Program("processes", "ddp", "checkpoint.pt", world_size=2),
    Program("generation", "forward_forward", "forward_forward.pt"),
    Program("graphs", "graph_attention", "gat.pt"),
    Program("graphs", "graph_convolution", "gcn.safetensors"),
    HOGWILD,
    Program("pictures", "mnist", "mnist_cnn.pt"),
    Program("pictures", "mnist_rnn", "mnist_rnn.pt"),
    Program("processes", "regression", "regression.pt"),
    Program("control", "reinforce", "policy.pt"),
    Program("pictures", "resnet18", "checkpoint.pth"),
    Program("sequences", "sequence_prediction", "sequence.pt", variants=(2,)),  # LBFGS has one kernel
    Program("pictures", "siamese", "siamese.safetensors"),
    Program("generation", "vae", "vae.safetensors"),
    Program("sequences", "word_lm_lstm", "model.pt"),
    Program("sequences", "word_lm_transformer", "model.pt"),
)

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
