"""The measurement behind the rates in docs/verdicts.md: accused healthy rows, and missed faults.

    python -m tests.verify.campaign kernels --seed 1 --trainings 300 --out rows.jsonl
    python -m tests.verify.campaign engines --seed 1 --trainings 100 --out rows.jsonl [--deepspeed PYTHON]
    python -m tests.verify.campaign faults --seed 1 --trainings 300 --out rows.jsonl
    python -m tests.verify.campaign listed --seed 1 --out rows.jsonl
    python -m tests.verify.campaign table rows.jsonl ...

`kernels` trains with torch's kernels of Adam in this process, `engines` with DDP, FSDP2,
ZeroRedundancyOptimizer, the built-in engine and, if its interpreter is given, DeepSpeed in real processes.
Each row is a line of JSON. `--part 1/2` takes every second training run: two processes share a campaign.
"""

import argparse
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import beta

import zbench.measure.shim  # noqa: F401 - before torch, so that ranks can count allocated bytes
from tests.making import make_trial
from tests.verify.faults import (
    CNN,
    ENGINE,
    GPT,
    KINDS,
    LATE_STEPS,
    OF_CNN,
    OF_GPT,
    STEPS,
    Fault,
    Listed,
    late,
)
from tests.verify.honest import KERNELS, Run, task_of
from tests.verify.runs import compute_on_core, reference
from tests.verify.runs import task as make_task
from tests.verify.wrong import WrongRun
from tests.world import local_runner
from tests.zoo.sampling import DrawnRun, drawn_run
from zbench.launch.trial import TrialRunner
from zbench.record.record import Correctness

ROOT = Path(__file__).parents[2]
EAGER_KERNELS = tuple(name for name in KERNELS if name != "compiled")
KERNELS_OF_A_RUN = {5: 4, 20: 4, 60: 2, 300: 1}
"""By the number of steps: how many kernels train one drawn run; long runs cost as much as all others."""
ACCUSED = ("drifted", "wrong")
ENGINES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "ddp": [{}],
    "zero_redundancy": [{}],
    "fsdp2": [{}],
    "builtin": [{"zero_stage": stage} for stage in range(4)],
}


@dataclass(frozen=True, slots=True)
class Row:
    """One judged row. by: the kernel or engine. problem: why there is no verdict, if there is none."""

    seed: int
    number: int
    title: str
    kind: str
    is_usual: bool
    steps: int
    dtype: str
    by: str
    verdict: str
    error_ratio: float | None = None
    diagnosis: str | None = None
    why: str | None = None
    problem: str | None = None

    @classmethod
    def of(
        cls, seed: int, number: int, drawn: DrawnRun, by: str, result: Correctness, warnings: Sequence[str]
    ) -> "Row":
        """Return the row of a verdict."""
        why = "; ".join(warnings) if result.verdict == "unchecked" else None
        return cls(
            seed, number, drawn.title, drawn.model.kind, drawn.is_usual, drawn.steps, drawn.engine["dtype"],
            by, result.verdict, result.error_ratio, result.diagnosis, why,
        )  # fmt: skip


def kernel_rows(seed: int, number: int) -> Iterator[Row]:
    """Yield the verdicts on a drawn training run by torch's kernels of Adam."""
    lot = random.Random(f"{seed} {number}")
    drawn = drawn_run(lot)
    task = task_of(drawn)
    plain = reference(task)
    for kernel in lot.sample(EAGER_KERNELS, KERNELS_OF_A_RUN[drawn.steps]):
        judgement = Run(task, kernel, lot.randrange(task.steps)).judged(plain)
        yield Row.of(seed, number, drawn, kernel, judgement.correctness, judgement.warnings)


def engine_rows(runner: TrialRunner, seed: int, number: int, deepspeed: str | None) -> Iterator[Row]:
    """Yield the verdicts on a drawn training run by engines in real processes. deepspeed: its interpreter."""
    lot = random.Random(f"engines {seed} {number}")
    drawn = drawn_run(lot)
    engines = dict(ENGINES)
    if deepspeed is not None:
        engines["deepspeed"] = [{"zero_stage": stage, "engine_python": deepspeed} for stage in (1, 2)]
    for engine, choices in engines.items():
        trial = make_trial(
            drawn.engine | {"engine": engine} | dict(lot.choice(choices)),
            workload=drawn.workload,
            world_size=drawn.world_size,
            seed=drawn.seed,
            device="cpu",
            warmup_steps=1,
            steps=drawn.steps - 2,  # the last step is not timed
            threads_per_rank=1,
            timeout="90s",  # torch's engines hang on some models
        )
        record = runner.run(trial)
        row = Row.of(seed, number, drawn, engine, record.correctness, record.warnings)
        if record.error is not None:
            problem = f"{record.outcome}: {record.error.message}"
            row = Row(*[getattr(row, name) for name in Row.__slots__[:-1]], problem)
        yield row


def fault_rows(seed: int, number: int) -> Iterator[Row]:
    """Yield the verdict on a drawn training run with a drawn fault; `by` is the fault."""
    lot = random.Random(f"faults {seed} {number}")
    drawn = drawn_run(lot)
    kind = lot.choice(KINDS)
    if not drawn.is_usual:
        return
    if kind == "clip":
        drawn.engine["gradient_clipping"] = 1e-3  # every step is clipped
    task = task_of(drawn)
    plain = reference(task)
    sizes = {name: value.numel() for name, value in plain.plain.parameters.items()}
    if max(sizes.values()) < 256:
        return
    fault = Fault.drawn(kind, lot, task.steps, sizes)
    run = WrongRun(task, "fused", lot.randrange(task.steps), wrong=fault.wrong)
    run.first, run.last = fault.first, fault.last
    judgement = run.judged(plain)
    yield Row.of(seed, number, drawn, str(fault), judgement.correctness, judgement.warnings)


def listed_rows(seed: int, number: int) -> Iterator[Row]:
    """Yield the verdicts on listed faults. number: 0 for bfloat16, 1 for float32, 2 to 11 for late faults, at
    two learning rates.
    """
    dtype = "bfloat16" if number == 0 else "float32"
    lots: list[tuple[dict[str, object], int, list[Listed]]] = [(GPT, STEPS, OF_GPT), (CNN, STEPS, OF_CNN)]
    settings = dict(ENGINE)
    if number > 1:
        settings["optimizer"] = {"lr": (0.02, 0.03)[number % 2], "weight_decay": 0.01}
        lots = [(GPT, LATE_STEPS, late(10 * (number // 2)))]
    for workload, steps, faults in lots:
        task = make_task(workload, steps=steps, seed=seed, dtype=dtype, **settings)
        plain = reference(task)
        for fault in faults:
            run = WrongRun(task, "fused", 13, wrong=fault.wrong, first=fault.first, last=fault.last)
            result = run.judged(plain)
            kind = "small" if fault.small else "fault"
            yield Row(
                seed, number, fault.name, kind, True, steps, dtype, "fused", result.correctness.verdict,
                result.correctness.error_ratio, result.correctness.diagnosis, "; ".join(result.warnings),
            )  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Return the rates of a campaign as text: verdicts, accused rows, and reasons of unchecked rows."""
    judged = [row for row in rows if row.problem is None]
    usual = [row for row in judged if row.is_usual]
    accused = [row for row in judged if row.verdict in ACCUSED]
    unchecked = [row for row in usual if row.verdict == "unchecked"]
    lines = [f"{len(judged)} rows of {len({(row.seed, row.number) for row in judged})} training runs"]
    lines += [f"{verdict}: {count}" for verdict, count in Counter(row.verdict for row in judged).items()]
    if judged:
        bound = beta.ppf(0.95, len(accused) + 1, len(judged) - len(accused))  # Clopper-Pearson
        lines += [f"accused: {len(accused)}, at most {bound:.2%} of such rows with 95 % confidence"]
    if usual:
        lines += [f"usual rows: {len(usual)}, of these unchecked {len(unchecked) / len(usual):.1%}"]
    lines += [
        f"accused: {row.title} | {row.by} {row.verdict} {row.error_ratio}: {row.diagnosis}" for row in accused
    ]
    lines += [
        f"unchecked, {kind}: {count} ({why})"
        for (kind, why), count in Counter((row.kind, row.why) for row in unchecked).most_common()
    ]
    lines += [
        f"no verdict: {count} x {problem}"
        for problem, count in Counter(row.problem for row in rows if row.problem).most_common()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["kernels", "engines", "faults", "listed", "table"])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trainings", type=int, default=100)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--deepspeed")
    options = parser.parse_args()
    if options.what == "table":
        lines = (line for file in options.files for line in file.read_text().splitlines())
        print(table([Row(**json.loads(line)) for line in lines]))
        return
    part, parts = map(int, options.part.split("/"))
    numbers = range(options.first + part, options.first + options.trainings, parts)
    if options.what != "engines":
        compute_on_core(part)
    with open(options.out, "a", buffering=1) as out:
        for row in _rows(options, numbers):
            print(json.dumps({name: getattr(row, name) for name in Row.__slots__}), file=out)


def _rows(options: argparse.Namespace, numbers: Sequence[int]) -> Iterator[Row]:
    if options.what == "engines":
        os.environ["PYTHONPATH"] = str(ROOT)
        with (
            tempfile.TemporaryDirectory() as folder,
            local_runner(Path(folder), ROOT, rerun_disturbed=False) as runner,
        ):
            for number in numbers:
                yield from engine_rows(runner, options.seed, number, options.deepspeed)
        return
    rows_of = {"kernels": kernel_rows, "faults": fault_rows, "listed": listed_rows}[options.what]
    for number in numbers:
        yield from rows_of(options.seed, number)


if __name__ == "__main__":
    main()
