"""Peak memory by zbench's simulation, DeepSpeed's estimator and accelerate's, against the same measured runs.

    python -m zbench.bench.estimators --deepspeed PYTHON [--out FILE]

DeepSpeed's functions are called in an environment that has it, accelerate's here. Neither counts activations
or buckets. Runs are bfloat16, which DeepSpeed's formula assumes, on two ranks.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zbench.bench import results
from zbench.bench.trials import warm_runner
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.trial import TrialSpec
from zbench.units import format_bytes

RANKS = 2
TIMES_SMALLER = 10
SPACE: dict[str, Any] = {
    "name": "estimators",
    "workload": {"model": "gpt", "preset": "mini", "sequence_length": 128, "data": {"synthetic": True}},
    "run": {"world_size": RANKS, "device": "cpu", "warmup_steps": 1, "steps": 1, "timeout": "300s"},
    "engine": {"dtype": "bfloat16"},
    "axes": {
        "zero_stage": [0, 2, 3],
        "offload_optimizer": ["none", "cpu"],
        "micro_batch_size": [1, 4],
    },
    "exclude": [{"zero_stage": 0, "offload_optimizer": "cpu"}],
    "verify": {"mode": "off"},
}
_ASK_DEEPSPEED = """
import json, sys
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as two
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as three
answers = []
for stage, offload, total, largest, ranks in json.loads(sys.argv[1]):
    if stage == 3:
        answers.append(three(total, largest, ranks, 1, offload, False)[1])
    else:
        answers.append(two(total, ranks, 1, offload)[1] if stage == 2 else None)
print(json.dumps(answers))
"""


@dataclass(frozen=True, slots=True)
class Peak:
    """One configuration's peak of device memory on a rank, in bytes: measured, and by each estimator."""

    axes: dict[str, Any]
    measured: int
    zbench: int
    deepspeed: int | None
    accelerate: int | None

    def error(self, name: str) -> float | None:
        """Return how far an estimator is off, as a share of what was measured; None without a figure."""
        found: int | None = getattr(self, name)
        return None if found is None else abs(found - self.measured) / self.measured

    def row(self) -> list[str]:
        """Return a row of the table."""
        cells = [" ".join(f"{key}={value}" for key, value in self.axes.items()), format_bytes(self.measured)]
        for name in ("zbench", "deepspeed", "accelerate"):
            found, error = getattr(self, name), self.error(name)
            cells.append("-" if found is None else f"{format_bytes(found)} ({error:.2%})")
        return cells


def sizes() -> tuple[int, int, int]:
    """Return the model's parameters, those of its largest layer, and what accelerate says of its training."""
    import torch
    from accelerate.commands.estimate import calculate_maximum_sizes, estimate_training_usage

    from zbench.workloads import build_workload

    spec = expand(sweep_from_mapping(SPACE)).trials[0]
    workload = build_workload(spec.workload, seed=0, world_size=RANKS, base_dir=Path.cwd())
    with torch.device("meta"):
        model = workload.factory()
    largest = max(sum(p.numel() for p in m.parameters(recurse=False)) for m in model.modules())
    model.__dict__["tie_weights"] = lambda: None  # accelerate asks models of transformers
    total_bytes, _ = calculate_maximum_sizes(model)
    usage = estimate_training_usage(total_bytes, "bfloat16")
    return sum(p.numel() for p in model.parameters()), largest, int(max(usage.values()))


def by_deepspeed(python: Path, trials: list[TrialSpec], total: int, largest: int) -> list[int | None]:
    """Return what DeepSpeed says of each trial's device memory; None for stage 0: it has no formula."""
    asked = [
        (t.engine.zero_stage, t.engine.offload_optimizer == "cpu", total, largest, RANKS) for t in trials
    ]
    words = [str(python), "-c", _ASK_DEEPSPEED, json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    answers: list[int | None] = json.loads(done.stdout.splitlines()[-1])
    return answers


def peaks(python: Path) -> Iterator[Peak]:
    """Yield every configuration once measured."""
    trials = expand(sweep_from_mapping(SPACE)).trials
    total, largest, accelerate = sizes()
    deepspeed = by_deepspeed(python, trials, total, largest)
    with Simulator(Path.cwd()) as simulator:
        simulated = list(simulator.each(trials))
    with warm_runner(rerun_disturbed=True) as runner:
        for trial, ours, theirs in zip(trials, simulated, deepspeed, strict=True):
            assert isinstance(ours, Estimate), ours
            record = runner.run(trial)
            if record.memory is None or record.memory.peak_device_bytes is None:
                raise RuntimeError(f"{trial.axes}: {record.error}")
            whole = accelerate if trial.engine.zero_stage == 0 else None
            yield Peak(trial.axes, record.memory.peak_device_bytes, ours.peak_device_bytes, theirs, whole)


def summary(found: list[Peak]) -> tuple[str, bool]:
    """Return each estimator's errors in words, and whether ours are so many times smaller."""
    lines, medians = [], {}
    for name in ("zbench", "deepspeed", "accelerate"):
        errors = [error for peak in found if (error := peak.error(name)) is not None]
        medians[name] = statistics.median(errors)
        lines.append(
            f"{name}: median error {medians[name]:.2%}, largest {max(errors):.2%}, of {len(errors)} runs"
        )
    others = min(medians["deepspeed"], medians["accelerate"])
    return "\n".join(f"- {line}" for line in lines), others >= TIMES_SMALLER * medians["zbench"]


def main() -> None:
    """Measure, print the table, and exit with 1 where our error is not so many times smaller."""
    parser = results.parser(__doc__)
    parser.add_argument("--deepspeed", type=Path, required=True, help="a Python that has DeepSpeed")
    given = parser.parse_args()
    found = []
    for peak in peaks(given.deepspeed):
        found.append(peak)
        print(*peak.row(), sep=" | ", flush=True)
    text, is_met = summary(found)
    columns = ("configuration", "measured", "zbench", "DeepSpeed", "accelerate")
    table = results.table(columns, [peak.row() for peak in found])
    print(table, text, sep="\n\n")
    results.write(given.out, f"{table}\n\n{text}", {"configurations": [asdict(peak) for peak in found]})
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
