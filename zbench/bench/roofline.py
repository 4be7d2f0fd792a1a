"""Estimated step times against measured ones: this machine's rates are measured, then configurations are.

    python -m zbench.bench.roofline [--part quickstart|gpt] [--out FILE]

Each configuration is trained by two ranks and its median step held against the range that `zbench estimate`
prints with the rates of `zbench doctor --calibrate`. Run it on a quiet machine.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zbench.bench import results
from zbench.bench.calibration import calibrate
from zbench.bench.trials import warm_runner
from zbench.estimate.client import Simulator
from zbench.estimate.result import Estimate
from zbench.estimate.roofline import StepTime, step_time
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep, sweep_file, sweep_from_mapping
from zbench.spec.machine import MachineSpec
from zbench.spec.trial import TrialSpec

WANTED = 0.9
GPT: dict[str, Any] = {
    "name": "gpt-100m",
    "workload": {
        "model": "gpt",
        "options": {"layers": 12, "width": 768, "heads": 12, "vocabulary": 16384},
        "sequence_length": 128,
        "micro_batch_size": 1,
        "data": {"synthetic": True},
    },
    "run": {"world_size": 2, "warmup_steps": 1, "steps": 3, "timeout": "300s"},
    "engine": {"gradient_clipping": 1.0},
    "axes": {"zero_stage": [0, 1, 2, 3], "offload_optimizer": ["none", "cpu"], "micro_batch_size": [1, 4]},
    "exclude": [{"zero_stage": 0, "offload_optimizer": "cpu"}],
}


@dataclass(frozen=True, slots=True)
class HeldTime:
    """One configuration: the range, and the median step that was measured."""

    part: str
    axes: dict[str, Any]
    time: StepTime
    measured_s: float

    @property
    def is_inside(self) -> bool:
        """Whether the measured step lies in the range."""
        return self.time.low_s <= self.measured_s <= self.time.high_s

    def row(self) -> list[str]:
        """Return a row of the table."""
        name = " ".join(f"{key}={value}" for key, value in self.axes.items())
        span = f"{self.time.low_s * 1e3:.1f} to {self.time.high_s * 1e3:.1f}"
        met = "" if self.is_inside else "outside"
        return [self.part, name, span, f"{self.measured_s * 1e3:.1f}", met]


def trials_of(part: str) -> list[TrialSpec]:
    """Return the configurations of one part, without verification."""
    off = ["verify.mode=off"]
    if part == "quickstart":
        sweep = load_sweep(sweep_file(Path("quickstart")), [*off, "data.synthetic=true", "data.text=null"])
    else:
        sweep = sweep_from_mapping(GPT, off)
    return expand(sweep).trials


def held(part: str, machine: MachineSpec) -> Iterator[HeldTime]:
    """Yield each configuration of a part once measured."""
    trials = trials_of(part)
    with Simulator(Path.cwd(), jobs=2) as simulator:
        found = list(simulator.each(trials))
    with warm_runner(rerun_disturbed=True) as runner:
        for trial, estimate in zip(trials, found, strict=True):
            assert isinstance(estimate, Estimate), estimate
            time = step_time(estimate, trial, machine)
            assert isinstance(time, StepTime), time
            record = runner.run(trial)
            if record.timing is None:
                raise RuntimeError(f"{trial.axes}: {record.error}")
            yield HeldTime(part, trial.axes, time, record.timing.median_step_s)


def main() -> None:
    """Measure, print the table, and exit with 1 where fewer than WANTED lie inside."""
    parser = results.parser(__doc__)
    parser.add_argument("--part", choices=["quickstart", "gpt"], action="append")
    given = parser.parse_args()
    machine = calibrate(2)
    print(machine, flush=True)
    found: list[HeldTime] = []
    for part in given.part or ["quickstart", "gpt"]:
        for each in held(part, machine):
            found.append(each)
            print(*each.row(), sep=" | ", flush=True)
    inside = sum(each.is_inside for each in found)
    columns = ("part", "configuration", "estimated, ms", "measured, ms", "")
    table = results.table(columns, [each.row() for each in found])
    text = f"{table}\n\n{inside} of {len(found)} inside the range."
    print(text)
    rows = [asdict(each) | {"inside": each.is_inside} for each in found]
    results.write(given.out, text, {"rates": machine.model_dump(), "configurations": rows})
    sys.exit(0 if inside >= WANTED * len(found) else 1)


if __name__ == "__main__":
    main()
