"""Error ratios of engines without known faults, from which the limits of the verdicts follow.

    python -m zbench.bench.healthy [--deepspeed-python PYTHON] [--strength N] [--minutes M] --out FILE

Trains small models with the built-in engine, torch's own engines and, where an interpreter that has it is
named, DeepSpeed: float32 and bfloat16, 2 to 24 layers, 1 to 200 steps, with and without accumulation. None of
these has a known fault, so each verdict worse than `equivalent` is a false one.

The whole product takes most of a day. Of it, a covering design is measured: every two choices (an engine with
its stage and offload, dtype, steps, layers, model, accumulation) meet in some run; `--strength 3` lets every
three meet, `--strength 6` is the product. Engines take turns, each with its configurations in random order,
and every finding is written at once: a measurement that was cut short goes on where it stopped.
"""

import math
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product, zip_longest
from pathlib import Path
from typing import Any

from zbench.bench import results
from zbench.bench.resumable import Kept
from zbench.bench.trials import warm_runner
from zbench.launch.trial import TrialRunner
from zbench.spec.covering import covering
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.peers import elsewhere
from zbench.spec.trial import TrialSpec

STEPS = (1, 3, 10, 50, 200)
LAYERS = (2, 8, 24)
MODELS: dict[str, dict[str, int]] = {"gpt": {"width": 32, "heads": 2}, "mlp": {"hidden": 64}}
DTYPES = ("float32", "bfloat16")
ACCUMULATION = (1, 4)
LONGEST = 2000
"""Layers x steps x micro-steps of a configuration: deeper or longer ones take minutes for a float64 run."""
ENGINE = ("engine", "zero_stage", "offload_optimizer", "reduce_at")
OTHERS = ("dtype", "steps", "layers", "model", "accumulation")
OFFLOAD = {"offload_optimizer": "cpu"}
BUILT_IN: tuple[dict[str, Any], ...] = (
    *({"zero_stage": stage} for stage in range(4)),
    *({"zero_stage": stage, **OFFLOAD} for stage in (2, 3)),
    *({"zero_stage": stage, "reduce_at": "each_backward"} for stage in (0, 1)),
    *({"zero_stage": stage, "reduce_at": "boundary"} for stage in (2, 3)),
)
TORCHS: tuple[dict[str, Any], ...] = (
    {"engine": "ddp", "zero_stage": 0},
    {"engine": "zero_redundancy", "zero_stage": 1},
    {"engine": "fsdp2", "zero_stage": 3},
)
DEEPSPEEDS: tuple[dict[str, Any], ...] = (
    *({"engine": "deepspeed", "zero_stage": stage} for stage in range(4)),
    *({"engine": "deepspeed", "zero_stage": stage, **OFFLOAD} for stage in (1, 2, 3)),
)


def trials(deepspeed_python: str | None, strength: int = 2) -> list[TrialSpec]:
    """Return healthy configurations, each engine in turn; strength: how many choices meet in some run."""
    engines = [*BUILT_IN, *TORCHS]
    if deepspeed_python is not None:
        engines += [one | {"engine_python": deepspeed_python} for one in DEEPSPEEDS]
    points = [choices for engine in engines for choices in _of_engine(engine)]
    chosen = [points[index] for index in covering(points, strength)]
    each = [[_trial(**choices) for choices in chosen if choices["engine"] == engine] for engine in engines]
    for number, theirs in enumerate(each):
        random.Random(number).shuffle(theirs)
    return [trial for turn in zip_longest(*each) for trial in turn if trial is not None]


def _of_engine(engine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an engine's choices; torch's compute in float32 alone, and so is DeepSpeed's stage 0 judged."""
    unrounded = engine in TORCHS or (engine["zero_stage"] == 0 and engine.get("engine") == "deepspeed")
    dtypes = DTYPES[:1] if unrounded else DTYPES
    for model, layers, steps, dtype, accumulation in product(MODELS, LAYERS, STEPS, dtypes, ACCUMULATION):
        if layers * steps * accumulation <= LONGEST:
            yield {
                "engine": engine, "model": model, "layers": layers, "steps": steps, "dtype": dtype,
                "accumulation": accumulation,
            }  # fmt: skip


def _trial(
    engine: dict[str, Any], *, model: str, layers: int, steps: int, dtype: str, accumulation: int
) -> TrialSpec:
    options = {"layers": layers, "vocabulary": 64, **MODELS[model]}
    document = {
        "workload": {"model": model, "options": options, "sequence_length": 16, "micro_batch_size": 2},
        "run": {"world_size": 2, "threads_per_rank": 1, "warmup_steps": 0, "steps": steps, "timeout": 300},
        "engine": {
            "gradient_clipping": 1.0, "dtype": dtype, "gradient_accumulation_steps": accumulation, **engine
        },
    }  # fmt: skip
    (trial,) = expand(sweep_from_mapping(document, environ={})).trials
    return trial


def asked(trial: TrialSpec) -> dict[str, Any]:
    """Return the choices that make a configuration."""
    engine = trial.engine
    return {
        "engine": engine.engine,
        "zero_stage": engine.zero_stage,
        "offload_optimizer": engine.offload_optimizer,
        "reduce_at": engine.reduce_at,
        "dtype": engine.dtype,
        "accumulation": engine.gradient_accumulation_steps,
        "model": trial.workload.model,
        "layers": trial.workload.options["layers"],
        "steps": trial.run.steps,
    }


def combinations_in(one: Mapping[str, Any], strength: int) -> set[tuple[Any, ...]]:
    """Return the combinations of so many choices that meet in one configuration; an engine is one choice."""
    engine = tuple(one[key] for key in ENGINE)
    rest = (("engine", engine), *((key, one[key]) for key in OTHERS))
    return set(combinations(rest, strength))


def missing(
    wanted: Iterable[TrialSpec], found: Iterable[Mapping[str, Any]], strength: int
) -> list[TrialSpec]:
    """Return the planned configurations that hold a combination which no finding has."""
    met = {each for one in found for each in combinations_in(one, strength)}
    return [trial for trial in wanted if combinations_in(asked(trial), strength) - met]


def finding(trial: TrialSpec, runner: TrialRunner) -> dict[str, Any]:
    """Train one configuration and return what was asked and how far it was from the reference."""
    record = runner.run(trial)
    found = record.correctness
    return {
        "trial_id": trial.trial_id,
        **asked(trial),
        "outcome": record.outcome,
        "error": None if record.error is None else record.error.message,
        "verdict": found.verdict,
        "error_ratio": found.error_ratio,
        "worst_parameter": found.worst_parameter,
    }


def tables(found: Sequence[dict[str, Any]], planned: Sequence[TrialSpec], strength: int = 2) -> str:
    """Return what was found, as Markdown: by engine and dtype, and by dtype and steps.

    planned: the design, which says what combinations of choices there are.
    """
    wanted = {each for trial in planned for each in combinations_in(asked(trial), strength)}
    met = wanted & {each for one in found for each in combinations_in(one, strength)}
    judged = [one for one in found if one["error_ratio"] is not None]
    worse = [one for one in judged if one["verdict"] in ("drifted", "wrong")]
    failed = [one for one in found if one["error_ratio"] is None]
    parts = [
        "# Healthy engines",
        "How far engines without a known fault are from a float64 run, over the reference's own distance: the"
        " error ratio.",
        f"{len(found)} configurations: GPTs and MLPs of {', '.join(map(str, LAYERS))} layers,"
        f" {', '.join(map(str, STEPS))} steps, 2 ranks, AdamW, with and without 4 micro-steps of accumulation"
        f" (layers x steps x micro-steps at most {LONGEST}). Of the {len(wanted)} combinations of {strength}"
        f" choices (engine with stage, offload and reduction; dtype; steps; layers; model; accumulation)"
        f" {len(met)} met in some of them.",
        f"{len(worse)} of {len(judged)} were called `drifted` or `wrong`; {len(failed)} gave no ratio.",
        _table("engine", "dtype", judged),
        _table("zero_stage", "engine", judged),
        _table("dtype", "steps", judged),
        _table("dtype", "layers", judged),
    ]
    for one in sorted(worse, key=lambda one: -float(one["error_ratio"])):
        parts.append(f"- {_named(one)}: {one['error_ratio']:.2f}, worst {one['worst_parameter']}")
    parts += [f"- no ratio: {_named(one)}: {one['outcome']}: {one['error']}" for one in failed]
    return "\n\n".join(parts)


def _named(one: dict[str, Any]) -> str:
    keys = ("engine", "zero_stage", "offload_optimizer", "reduce_at", "dtype", "accumulation", "model")
    return " ".join(f"{key}={one[key]}" for key in (*keys, "layers", "steps"))


def _table(first: str, second: str, judged: Sequence[dict[str, Any]]) -> str:
    rows = []
    groups = sorted({(one[first], one[second]) for one in judged})
    for group in groups:
        members = [one for one in judged if (one[first], one[second]) == group]
        ratios = sorted(one["error_ratio"] for one in members)
        same = sum(one["verdict"] == "identical" for one in members)
        high = ratios[min(len(ratios) - 1, int(0.95 * len(ratios)))]
        figures = (statistics.median(ratios), high, ratios[-1])
        rows.append([*group, len(members), same, *(f"{figure:.2f}" for figure in figures)])
    columns = (first, second, "configurations", "identical", "median", "95 % up to", "largest")
    return results.table(columns, rows)


def _versions(python: str) -> dict[str, str]:
    """Return the version of DeepSpeed in an environment."""
    found = elsewhere("deepspeed", python, Path.cwd())
    return {} if isinstance(found, str) else {"deepspeed": found.versions["deepspeed"]}


def main() -> None:
    """Measure what is not measured yet, and write the tables."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--deepspeed-python", help="an environment or interpreter that has DeepSpeed")
    parser.add_argument("--strength", type=int, default=2, help="how many choices meet in some run")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this long")
    parser.add_argument("--limit", type=int, help="stop when so many configurations are measured")
    given = parser.parse_args()
    kept, until = Kept(given.out), time.monotonic() + 60 * given.minutes
    every = trials(given.deepspeed_python, given.strength)
    with warm_runner() as runner:
        while left := missing(every, kept.found, given.strength):
            if time.monotonic() > until or len(kept.found) >= (given.limit or math.inf):
                break
            kept.add(finding(left[0], runner))
            print(f"{len(left)} left: {kept.found[-1]}", file=sys.stderr, flush=True)
    text = tables(kept.found, every, given.strength)
    software = {} if given.deepspeed_python is None else _versions(given.deepspeed_python)
    results.write(given.out, text, {"configurations": kept.found}, software=software)
    print(text)


if __name__ == "__main__":
    main()
