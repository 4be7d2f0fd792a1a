"""Error ratios of engines without known faults, from which the limits of the verdicts follow.

    python -m tools.benchmarks.healthy [--deepspeed-python PYTHON] [--minutes M] --out FILE

Trains small models with the built-in engine, torch's own engines and, where an interpreter that has it is
named, DeepSpeed: float32 and bfloat16, 2 to 24 layers, 1 to 200 steps, with and without accumulation. None of
these has a known fault, so each verdict worse than `equivalent` is a false one.

The whole product takes most of a day. Of it, a covering design is measured: every two choices (an engine with
its stage and offload, dtype, steps, layers, model, accumulation) meet in some run. Engines take turns, each
with its configurations in random order, and every finding is written at once: a measurement that was cut
short goes on where it stopped.
"""

import random
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product, zip_longest
from typing import Any

from tools.benchmarks import results
from tools.benchmarks.engines import deepspeed_versions
from tools.benchmarks.trials import warm_runner
from zbench.launch.trial import TrialRunner
from zbench.spec.covering import covering
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
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


def trials(deepspeed_python: str | None) -> list[TrialSpec]:
    """Return healthy configurations, each engine in turn: every two choices meet in some of them."""
    engines = [*BUILT_IN, *TORCHS]
    if deepspeed_python is not None:
        engines += [one | {"engine_python": deepspeed_python} for one in DEEPSPEEDS]
    points = [choices for engine in engines for choices in _of_engine(engine)]
    chosen = [points[index] for index in covering(points, 2)]
    by_engine = [[_trial(**one) for one in chosen if one["engine"] == engine] for engine in engines]
    for number, of_engine in enumerate(by_engine):
        random.Random(number).shuffle(of_engine)
    return [trial for turn in zip_longest(*by_engine) for trial in turn if trial is not None]


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


def pairs_in(one: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    """Return the pairs of choices that meet in one configuration; an engine is one choice."""
    engine = tuple(one[key] for key in ENGINE)
    return set(combinations((("engine", engine), *((key, one[key]) for key in OTHERS)), 2))


def missing(design: Iterable[TrialSpec], findings: Iterable[Mapping[str, Any]]) -> list[TrialSpec]:
    """Return the planned configurations that hold a pair of choices which no finding has."""
    met = {pair for one in findings for pair in pairs_in(one)}
    return [trial for trial in design if pairs_in(asked(trial)) - met]


def finding(trial: TrialSpec, runner: TrialRunner) -> dict[str, Any]:
    """Train one configuration and return what was asked and how far it was from the reference."""
    record = runner.run(trial)
    return {
        "trial_id": trial.trial_id,
        **asked(trial),
        "outcome": record.outcome,
        "error": None if record.error is None else record.error.message,
        "verdict": record.correctness.verdict,
        "error_ratio": record.correctness.error_ratio,
        "worst_parameter": record.correctness.worst_parameter,
    }


def tables(findings: Sequence[dict[str, Any]], design: Sequence[TrialSpec]) -> str:
    """Return what was found, as Markdown: by engine and dtype, and by dtype and steps.

    design: what is to be measured, which says what pairs of choices there are.
    """
    every = {pair for trial in design for pair in pairs_in(asked(trial))}
    met = every & {pair for one in findings for pair in pairs_in(one)}
    judged = [one for one in findings if one["error_ratio"] is not None]
    worse = [one for one in judged if one["verdict"] in ("drifted", "wrong")]
    parts = [
        "# Healthy engines",
        "How far engines without a known fault are from a float64 run, over the reference's own distance: the"
        " error ratio.",
        f"{len(findings)} configurations; of the {len(every)} pairs of choices (engine with stage, offload"
        f" and reduction; dtype; steps; layers; model; accumulation) {len(met)} met in some of them.",
        f"{len(worse)} of {len(judged)} were called `drifted` or `wrong`;"
        f" {len(findings) - len(judged)} gave no ratio.",
        _table("engine", "dtype", judged),
        _table("dtype", "steps", judged),
    ]
    for one in findings:
        if one in worse or one not in judged:
            choices = " ".join(f"{key}={one[key]}" for key in (*ENGINE, *OTHERS))
            ratio = f"{one['error_ratio']:.2f}, worst {one['worst_parameter']}" if one in worse else ""
            parts.append(f"- {choices}: {one['outcome']}, {one['verdict']}: {ratio or one['error']}")
    return "\n\n".join(parts)


def _table(first: str, second: str, judged: Sequence[dict[str, Any]]) -> str:
    rows = []
    for group in sorted({(one[first], one[second]) for one in judged}):
        members = [one for one in judged if (one[first], one[second]) == group]
        ratios = [one["error_ratio"] for one in members]
        same = sum(one["verdict"] == "identical" for one in members)
        figures = (f"{figure:.2f}" for figure in (statistics.median(ratios), max(ratios)))
        rows.append([*group, len(members), same, *figures])
    return results.table((first, second, "configurations", "identical", "median", "largest"), rows)


def main() -> None:
    """Measure what is not measured yet, and write the tables."""
    parser = results.parser(__doc__, must_write=True)
    parser.add_argument("--deepspeed-python", help="interpreter that has DeepSpeed")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this long")
    given = parser.parse_args()
    kept, until = results.Kept(given.out), time.monotonic() + 60 * given.minutes
    design = trials(given.deepspeed_python)
    with warm_runner() as runner:
        while (left := missing(design, kept.findings)) and time.monotonic() < until:
            kept.add(finding(left[0], runner))
            results.say(f"{len(left)} left: {kept.findings[-1]}")
    text = tables(kept.findings, design)
    versions = deepspeed_versions(given.deepspeed_python)
    results.write(given.out, text, {"configurations": kept.findings}, software=versions)
    print(text)


if __name__ == "__main__":
    main()
