"""The optimizer under backward: what speculation leaves exposed.

    python -m tools.benchmarks.speculative [--steps N] [--out FILE]

On a CUDA device `make gpu` measures the schedules, in bfloat16 (`tools.benchmarks.gpu.superoffload`).

Schedules: one process, one compute thread, one optimizer thread. Six engines train copies of one GPT, a step
each in turn and in alternating order, so that a drift of the machine hits all alike. `exposed` is the time of
`engine.step()`, which is all that is left of the optimizer after backward; contention shows in `backward`.
"""

import statistics
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from tools.benchmarks import results
from tools.benchmarks.training import LENGTH, random_tokens, seeded_gpt
from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec

LIMITS = {"off": 0.0, "not triggered": 1e9, "always triggered": 1e-3}
SCHEDULES = ("after_backward", "speculative")
BARS = {"off": 0.15, "not triggered": 0.15}  # exposed, speculative / after_backward
WHOLE_STEP_BAR = 1.10  # always triggered, whole step
VOCABULARY, WARMUP = 1024, 2
PHASES = ("forward", "backward", "exposed", "whole")
COLUMNS = ["clipping", "schedule", "forward, ms", "backward, ms", "exposed, ms", "whole step, ms"]

Key = tuple[str, str]
Times = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Setup:
    """What the schedules are measured on; `length`, `batch`: of a micro-batch; `threads`: the optimizer's."""

    layers: int
    width: int
    length: int = LENGTH
    batch: int = 2
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = 1

    def micro_batch(self, step: int) -> tuple[Tensor, ...]:
        """Return the tokens and targets of a step, on the device."""
        data = random_tokens(self.batch, vocabulary=VOCABULARY, length=self.length).micro_batch(step)
        return tuple(tensor.to(self.device) for tensor in data)

    def finish(self) -> float:
        """Return the time when the device has done what it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def make_engine(limit: float, schedule: str, setup: Setup) -> Engine:
    """Return one contender, with the same seeded model."""
    spec = {
        "zero_stage": 1,
        "dtype": setup.dtype,
        "offload_optimizer": "cpu",
        "offload_schedule": schedule,
        "optimizer_threads": setup.threads,
        "gradient_clipping": limit,
        "reduce_bucket_size": 1_000_000 if setup.device == "cpu" else 20_000_000,
    }
    model = seeded_gpt(setup.layers, setup.width, vocabulary=VOCABULARY, length=setup.length)
    return build_engine(model.to(setup.device), EngineSpec.model_validate(spec))


def one_step(engine: Engine, step: int, into: Times, setup: Setup) -> None:
    """Train one step and note the seconds of its phases."""
    ids, targets = setup.micro_batch(step)
    marks = [setup.finish()]
    loss = engine.model(ids, targets)
    marks.append(setup.finish())
    engine.backward(loss)
    marks.append(setup.finish())
    engine.step()
    marks.append(setup.finish())
    for name, begin, end in zip(PHASES, marks, marks[1:], strict=False):
        into[name].append(end - begin)
    into["whole"].append(marks[-1] - marks[0])


def measure(steps: int, setup: Setup) -> dict[Key, Times]:
    """Return the seconds of every phase of every step after the warm-up."""
    engines = {(c, s): make_engine(LIMITS[c], s, setup) for c in LIMITS for s in SCHEDULES}
    times: dict[Key, Times] = {k: {n: [] for n in PHASES} for k in engines}
    try:
        for step in range(WARMUP + steps):
            order = list(engines) if step % 2 else list(engines)[::-1]
            for key in order:
                one_step(engines[key], step, times[key], setup)
    finally:
        for engine in engines.values():
            engine.close()
    return {key: {name: t[WARMUP:] for name, t in phases.items()} for key, phases in times.items()}


def medians(times: dict[Key, Times]) -> dict[Key, dict[str, float]]:
    """Return the median seconds of every phase."""
    return {k: {n: statistics.median(t) for n, t in phases.items()} for k, phases in times.items()}


def ratio(median: dict[Key, dict[str, float]], clip: str, phase: str) -> float:
    """Return the speculative schedule's seconds of a phase over those of the other."""
    return median[clip, "speculative"][phase] / median[clip, "after_backward"][phase]


def phase_rows(median: dict[Key, dict[str, float]]) -> list[list[str]]:
    """Return a row of milliseconds for each contender."""
    return [[*key, *(f"{m[name] * 1e3:.2f}" for name in PHASES)] for key, m in median.items()]


def table(times: dict[Key, Times]) -> str:
    """Return the ratios of medians that have a bar, and the medians behind them, as Markdown."""
    median = medians(times)
    ratios = [
        (f"exposed, clipping {clip}", f"{ratio(median, clip, 'exposed'):.3f}", f"{bar:.2f}")
        for clip, bar in BARS.items()
    ]
    for clip in LIMITS:
        bar_text = f"{WHOLE_STEP_BAR:.2f}" if clip == "always triggered" else ""
        ratios.append((f"whole step, clipping {clip}", f"{ratio(median, clip, 'whole'):.3f}", bar_text))
    return "\n\n".join(
        [
            results.table(("speculative / after_backward", "ratio of medians", "bar"), ratios),
            results.table(COLUMNS, phase_rows(median)),
        ]
    )


def main() -> None:
    """Measure, print the table, and write it beside the samples."""
    parser = results.parser(__doc__)
    parser.add_argument("--steps", type=int, default=40, help="measured steps of each engine")
    given = parser.parse_args()
    torch.set_num_threads(1)
    setup = Setup(layers=8, width=512)
    times = measure(given.steps, setup)
    text = table(times)
    print(text)
    seconds = {f"{clip}/{schedule}": phases for (clip, schedule), phases in times.items()}
    results.write(given.out, text, {"setup": asdict(setup), "seconds": seconds})


if __name__ == "__main__":
    main()
