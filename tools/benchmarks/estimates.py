"""What `zbench estimate` is worth: its peaks and its times against measured runs.

    python -m tools.benchmarks.estimates memory --deepspeed PYTHON [--out FILE]
    python -m tools.benchmarks.estimates rules --deepspeed PYTHON [--out FILE]
    python -m tools.benchmarks.estimates time [--out FILE]

`memory` trains a GPT in bfloat16 on two ranks and holds the simulated peak, DeepSpeed's estimator (called in
an environment that has it) and accelerate's against the measured one. `time` measures this machine's rates,
then holds the estimated range of the quickstart's configurations and of a GPT of 110 M parameters against
measured steps; the machine must be quiet. `rules` holds DeepSpeed's memory by rules against what its two
ranks allocate in 24 configurations, drawn at random. What many estimates cost:
`tools/benchmarks/llama-8b.yaml`.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zbench
from tools.benchmarks import results
from tools.benchmarks.trials import warm_runner
from zbench.app.doctor import calibrate
from zbench.estimate.client import Simulator
from zbench.estimate.reading import estimate as simulated
from zbench.estimate.result import Estimate
from zbench.estimate.roofline import StepTime, step_time
from zbench.record.record import Record
from zbench.spec.expand import conflict, expand
from zbench.spec.load import load_sweep, sweep_file
from zbench.spec.trial import TrialSpec
from zbench.units import format_bytes

RANKS = 2
TIMES_SMALLER, INSIDE = 10, 0.9
"""Bars: our error against the others', and the share of steps in their range."""
DRAWN, RULED = 24, 0.1
"""Configurations of DeepSpeed, and the largest error of their rules."""
_CHOICES: dict[str, list[dict[str, Any]]] = {
    "model": [
        {"model": "gpt", "options": {"layers": 3, "width": 192, "heads": 2}},
        {"model": "gpt", "options": {"layers": 2, "width": 64, "vocabulary": 8000, "tied_head": True}},
        {"model": "mlp", "options": {"layers": 6, "hidden": 500}},
    ],
    "zero_stage": [{"zero_stage": stage} for stage in range(4)],
    "dtype": [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "grad_accum_dtype": "bfloat16"},
    ],
    "offload": [{}, {"offload_optimizer": "cpu"}, {"offload_optimizer": "cpu", "offload_param": "cpu"}],
    "bucket": [{"reduce_bucket_size": size} for size in (50_000, 400_000, 2_000_000)],
    "overlap": [{}, {"overlap_comm": False}],
    "accumulation": [{}, {"gradient_accumulation_steps": 3}],
    "gathering": [{}, {"prefetch_bucket_size": 100_000, "param_persistence_threshold": 300}],
    "sub_group": [{}, {"sub_group_size": 200_000}],
}
_HOW_COUNTED = (
    "Measured: the larger peak of two ranks in their third step, as torch's CPU allocator counted it. By"
    " rules: rank 0. The rules leave out what gloo copies within a collective, such as a bucket in its"
    " reduce-scatter."
)
Finding = dict[str, Any]

PEAKS, TIMES = (Path(__file__).with_name(f"estimate-{what}.yaml") for what in ("peaks", "times"))
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


def measured(trials: Sequence[TrialSpec]) -> Iterator[tuple[TrialSpec, Estimate, Record]]:
    """Yield each trial with its estimate and its record."""
    with Simulator(Path.cwd()) as simulator:
        estimates = list(simulator.each(trials))
    with warm_runner(rerun_disturbed=True) as runner:
        for trial, estimate in zip(trials, estimates, strict=True):
            assert isinstance(estimate, Estimate), estimate
            record = runner.run(trial)
            if record.outcome != "ok":
                raise RuntimeError(f"{trial.axes}: {record.error}")
            yield trial, estimate, record


def sizes() -> tuple[int, int, int]:
    """Return the model's parameters, those of its largest layer, and what accelerate says of its training."""
    import torch
    from accelerate.commands.estimate import calculate_maximum_sizes, estimate_training_usage

    from zbench.workloads import build_workload

    spec = expand(load_sweep(PEAKS)).trials[0]
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


def memory(given: argparse.Namespace) -> tuple[str, list[Finding], bool]:
    """Return the peaks by each estimator as a table and as data, and whether the bar is met."""
    trials = expand(load_sweep(PEAKS)).trials
    total, largest, accelerate = sizes()
    deepspeed = by_deepspeed(given.deepspeed, trials, total, largest)
    findings = []
    for (trial, estimate, record), theirs in zip(measured(trials), deepspeed, strict=True):
        assert record.memory is not None
        findings.append(
            {
                "axes": trial.axes,
                "measured": record.memory.peak_device_bytes,
                "zbench": estimate.peak_device_bytes,
                "deepspeed": theirs,
                "accelerate": accelerate if trial.engine.zero_stage == 0 else None,
            }
        )
    text, is_met = memory_text(findings)
    return text, findings, is_met


def memory_text(findings: Sequence[Finding]) -> tuple[str, bool]:
    """Return the table, each estimator's errors in words, and whether ours are so many times smaller."""
    names = ("zbench", "deepspeed", "accelerate")
    lines = []
    medians = {}
    rows = [[_name(one["axes"]), format_bytes(one["measured"])] for one in findings]
    for name in names:
        errors = []
        for one, row in zip(findings, rows, strict=True):
            if one[name] is None:
                row.append("-")
                continue
            errors.append(abs(one[name] - one["measured"]) / one["measured"])
            row.append(f"{format_bytes(one[name])} ({errors[-1]:.2%})")
        medians[name] = statistics.median(errors)
        lines.append(
            f"- {name}: median error {medians[name]:.2%}, largest {max(errors):.2%}, of {len(errors)} runs"
        )
    others = min(medians["deepspeed"], medians["accelerate"])
    text = results.table(("configuration", "measured", *names), rows) + "\n\n" + "\n".join(lines)
    return text, others >= TIMES_SMALLER * medians["zbench"]


def counted(python: Path, trials: Sequence[TrialSpec]) -> Iterator[int]:
    """Yield the peak of each trial, as two ranks of `python` count it with DeepSpeed (`deepspeed_peaks`)."""
    inside = Path(zbench.__path__[0], "_inside.py")
    root = str(Path(__file__).parents[2])
    words = [str(python), str(inside), "run", os.pathsep.join(zbench.__path__)]
    configs = json.dumps([trial.model_dump(mode="json") for trial in trials])
    with subprocess.Popen(
        [*words, "tools.benchmarks.deepspeed_peaks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    ) as ranks:
        assert ranks.stdin is not None
        assert ranks.stdout is not None
        ranks.stdin.write(configs)
        ranks.stdin.close()
        for line in ranks.stdout:
            answer = json.loads(line)
            if "error" in answer:
                raise RuntimeError(answer["error"])
            yield answer["peak"]


def drawn() -> Iterator[TrialSpec]:
    """Yield configurations of DeepSpeed that it has, in the order of their draw."""
    pick = random.Random(0)
    names = set()
    while True:
        choice = {axis: pick.choice(values) for axis, values in _CHOICES.items()}
        workload = {
            **choice.pop("model"),
            "sequence_length": 64,
            "micro_batch_size": 4,
            "data": {"synthetic": True},
        }
        engine = dict(itertools.chain.from_iterable(one.items() for one in choice.values()))
        if engine["zero_stage"] != 3:
            for key in ("prefetch_bucket_size", "param_persistence_threshold", "sub_group_size"):
                engine.pop(key, None)
        axes = {"model": workload["model"], **workload["options"], **engine}
        run, engine = {"world_size": RANKS, "device": "cpu"}, {"engine": "deepspeed", **engine}
        parts = {"workload": workload, "run": run, "engine": engine, "axes": axes}
        trial = TrialSpec.model_validate(parts)
        refused = conflict(trial.engine, trial.run, trial.workload, simulated=True)
        if _name(axes) not in names and refused is None:
            names.add(_name(axes))
            yield trial


def rules(given: argparse.Namespace) -> tuple[str, list[Finding], bool]:
    """Return DeepSpeed's peaks by rules as a table and as data, and whether each is within the bar."""
    findings = []
    trials = list(itertools.islice(drawn(), DRAWN))
    for trial, peak in zip(trials, counted(given.deepspeed, trials), strict=True):
        ruled = simulated(trial, Path.cwd()).peak_device_bytes
        findings.append({"axes": trial.axes, "measured": peak, "zbench": ruled, "error": ruled / peak - 1})
        results.say(findings[-1])
    text, is_met = rules_text(findings)
    return text, findings, is_met


def rules_text(findings: Sequence[Finding]) -> tuple[str, bool]:
    """Return the table of peaks, the errors in words, and whether each is within the bar."""
    rows = []
    for one in findings:
        ruled = f"{format_bytes(one['zbench'])} ({one['error']:+.2%})"
        rows.append([_name(one["axes"]), format_bytes(one["measured"]), ruled])
    errors = [abs(one["error"]) for one in findings]
    table = results.table(("configuration", "measured", "by rules"), rows)
    most = max(errors)
    summary = f"median error {statistics.median(errors):.2%}, largest {most:.2%}, of {len(errors)} runs"
    return f"{_HOW_COUNTED}\n\n{table}\n\n{summary}", most <= RULED


def times(given: argparse.Namespace) -> tuple[str, list[Finding], bool]:
    """Return estimated and measured steps as a table and as data, and whether enough lie in their range."""
    machine = calibrate(RANKS)
    results.say(machine)
    findings = []
    for part, trials in timed_trials().items():
        for trial, estimate, record in measured(trials):
            span = step_time(estimate, trial, machine)
            assert isinstance(span, StepTime), span
            assert record.timing is not None
            step = record.timing.median_step_s
            findings.append(
                {"part": part, "axes": trial.axes, "low": span.low_s, "high": span.high_s, "measured": step}
            )
            results.say(findings[-1])
    text, is_met = time_text(findings)
    return text, findings, is_met


def timed_trials() -> dict[str, list[TrialSpec]]:
    """Return the configurations of each part, without verification."""
    sets = ["verify.mode=off", "data.synthetic=true", "data.text=null"]
    parts = {"quickstart": load_sweep(sweep_file(Path("quickstart")), sets), "gpt": load_sweep(TIMES)}
    return {part: expand(sweep).trials for part, sweep in parts.items()}


def time_text(findings: Sequence[Finding]) -> tuple[str, bool]:
    """Return the table of steps, and whether enough of them lie in their range."""
    rows, count = [], 0
    for one in findings:
        is_inside = one["low"] <= one["measured"] <= one["high"]
        count += is_inside
        span = f"{one['low'] * 1e3:.1f} to {one['high'] * 1e3:.1f}"
        step = f"{one['measured'] * 1e3:.1f}"
        rows.append([one["part"], _name(one["axes"]), span, step, "" if is_inside else "outside"])
    table = results.table(("part", "configuration", "estimated, ms", "measured, ms", ""), rows)
    return f"{table}\n\n{count} of {len(rows)} inside the range.", count >= INSIDE * len(rows)


def _name(axes: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in axes.items())


def main() -> None:
    """Measure, print, and exit with 1 where the bar is missed."""
    parser = results.parser(__doc__)
    parser.add_argument("what", choices=("memory", "rules", "time"))
    parser.add_argument("--deepspeed", type=Path, help="a Python that has DeepSpeed; all but `time` need it")
    given = parser.parse_args()
    if given.what != "time" and given.deepspeed is None:
        parser.error(f"{given.what}: give --deepspeed PYTHON")
    text, findings, is_met = {"memory": memory, "rules": rules, "time": times}[given.what](given)
    print(text)
    results.write(given.out, text, {"findings": findings})
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
