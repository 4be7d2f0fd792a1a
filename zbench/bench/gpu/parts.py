"""The parts of `make gpu`, in the order in which they are run."""

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zbench.bench.gpu import compiled, superoffload
from zbench.bench.gpu.commands import call, sweep
from zbench.bench.gpu.outcome import Bar, Outcome, Place

ROOT = Path(__file__).resolve().parents[3]
SWEEPS = ("quickstart", "stages", "accumulation", "engines", "superoffload", "compiled")


@dataclass(frozen=True, slots=True)
class Part:
    """One part: what it shows, and the seconds after which it is ended."""

    name: str
    shows: str
    seconds: int
    run: Callable[[Place], Outcome]


def build(place: Place) -> Outcome:
    """Whether the CUDA kernels were built and can be used."""
    from zbench.engine.adam import cuda_unavailable_reason

    reason = cuda_unavailable_reason()
    if reason is None:
        return Outcome("passed", "the CUDA kernels are usable")
    if place.device == "cpu":
        return Outcome("passed", f"not asked for on a CPU: {reason}")
    return Outcome("missing", f"{reason}; put nvcc on PATH and install again (torch's AdamW is used instead)")


def tests(place: Place) -> Outcome:
    """Every test that is marked `cuda`; on a CPU they are only collected."""
    if not (ROOT / "tests").is_dir() or importlib.util.find_spec("pytest") is None:
        return Outcome("missing", "the tests are in a checkout of the project, with pip install -e '.[test]'")
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-p", "no:cacheprovider", "tests/engine"]
    if place.device == "cpu":
        command.append("--collect-only")
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines() or ["pytest printed nothing"]
    (place.out / "tests.log").write_text(done.stdout, encoding="utf-8")
    passed = re.search(r"(\d+) passed", lines[-1]) or place.device == "cpu"
    return Outcome("passed" if done.returncode == 0 and passed else "failed", lines[-1])


def adam(place: Place) -> Outcome:
    """The update against the card's copy rate and torch's fused AdamW."""
    sizes = "1k" if place.tiny else "100M,500M,1B,2B"
    out = place.out / "adam-tables"
    flags = ["--sizes", sizes, "--rounds", "3" if place.tiny else "9", "--device", place.device]
    done = call("bench", "adam", *flags, "--out", str(out), "-q")
    if done.returncode != 0:
        return Outcome("failed", f"zbench bench adam ended with {done.returncode}")
    found: dict[str, Any] = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    bars = [Bar(b["says"], round(b["ratio"], 3), b["least"], most=False) for b in found["bars"]]
    rows = [["table", "parameters", "contender", "median, ms"]]
    for table in found["tables"]:
        for name, seconds in table["median_seconds"].items():
            rows.append([table["table"], f"{table['numel']:,}", name, f"{seconds * 1e3:.3f}"])
    return Outcome("passed", f"{len(found['tables'])} tables", rows, bars)


def decoder_sweep(place: Place) -> dict[str, Any]:
    """Return the sweep of a decoder of 1.0 G parameters in bfloat16, as a sweep file's document; the peers,
    and what they are compared with, in float32.
    """
    big = {"layers": 18, "width": 2048, "heads": 16, "vocabulary": 32000}
    workload = {
        "model": "gpt",
        "data": {"synthetic": True},
        "options": {"layers": 1, "width": 32, "heads": 2, "vocabulary": 64} if place.tiny else big,
        "sequence_length": 16 if place.tiny else 1024,
        "micro_batch_size": 1 if place.tiny else 4,
    }
    offloads: list[dict[str, Any]] = [
        {"zero_stage": stage, "offload_optimizer": "cpu"} for stage in (1, 2, 3)
    ]
    rows: list[dict[str, Any]] = [{"zero_stage": stage} for stage in (0, 1, 2, 3)] + offloads
    rows += [{**row, "offload_schedule": "speculative"} for row in offloads]
    plain: dict[str, Any] = {"dtype": "float32"}  # peers have no master weights beside bfloat16 parameters
    peers: list[dict[str, Any]] = [
        {**plain, "zero_stage": 0},
        {**plain, "zero_stage": 3},
        {**plain, **offloads[2]},
    ]
    peers += [{**plain, "engine": name, "zero_stage": stage} for name, stage in (("ddp", 0), ("fsdp2", 3))]
    if _has("deepspeed"):
        peers += [{**plain, "engine": "deepspeed", **row} for row in ({"zero_stage": 3}, offloads[2])]
    if place.tiny:
        rows, peers = rows[-1:], []
    worlds = [1] if place.tiny else [1, 2]
    return {
        "name": "decoder",
        "workload": workload,
        "run": {"warmup_steps": 1, "steps": 2 if place.tiny else 4, "repeats": 1, "timeout": "180s"},
        "engine": {"dtype": "bfloat16", "gradient_clipping": 1.0, "optimizer": {"lr": 1e-4}},
        "axes": {},
        "include": [
            *({**row, "world_size": world} for world in worlds for row in rows),
            *({**row, "world_size": 1} for row in peers),
        ],
        "verify": {"mode": "reference"},
    }


def decoder(place: Place) -> Outcome:
    """Stages x offload x speculation on one rank and on two ranks of the card, beside its peers."""
    file = place.out / "decoder-sweep.json"
    file.write_text(json.dumps(decoder_sweep(place), indent=1), encoding="utf-8")
    return sweep(file, place, "decoder")


def shipped(name: str) -> Callable[[Place], Outcome]:
    """Return what runs one of `sweeps/` end to end."""

    def run(place: Place) -> Outcome:
        file = ROOT / "sweeps" / f"{name}.yaml"
        if not file.exists():
            return Outcome("missing", f"{file} is not there: run in a checkout of the project")
        tiny = ["run.steps=1", "run.warmup_steps=1", "axes.zero_stage=[1]", "axes.offload_optimizer=[cpu]"]
        tiny += ["axes.reduce_bucket_size=[100000]", "include=[]", "verify.mode=reference"]
        return sweep(file, place, name, sets=tiny if place.tiny else ())

    return run


def _has(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


PARTS = (
    Part("build", "the CUDA kernels are there", 60, build),
    Part("tests", "every test marked `cuda`", 300, tests),
    Part("adam", "the update against the card's copy rate and torch's fused AdamW", 180, adam),
    Part("superoffload", "what speculation leaves exposed, with a trace", 240, superoffload.run),
    Part("compiled", "compiled ZeRO-1: released against held memory, CUDA graphs", 360, compiled.run),
    Part("decoder", "a decoder of 1.0 G parameters in bfloat16: stages, offload, speculation", 540, decoder),
    *(Part(f"sweep-{name}", f"sweeps/{name}.yaml end to end", 200, shipped(name)) for name in SWEEPS),
)
