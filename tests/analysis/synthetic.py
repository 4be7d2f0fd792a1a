"""Small synthetic results: records with the step times, bytes and verdicts that a test asks for."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zbench.analysis.trials import RunResults, Source, group_records
from zbench.record import lines
from zbench.record.record import Correctness, Failure, Memory, Outcome, Record, Timing, Traffic, VerdictName

MACHINE = {"cpu_model": "Example CPU", "cores": 2, "torch": "2.13.0"}


def record(
    step_s: float = 0.1,
    *,
    axes: dict[str, Any] | None = None,
    repeat: int = 0,
    verdict: VerdictName = "identical",
    peak: int = 1_000_000,
    traffic: int = 4_000_000,
    outcome: Outcome = "ok",
) -> Record:
    """Return one repeat whose every step took `step_s` seconds."""
    axes = {"zero_stage": 1} if axes is None else axes
    common = {
        "run_id": "20260101-000000-abcd",
        "trial_id": "t-" + "-".join(f"{key}{value}" for key, value in axes.items()),
        "repeat": repeat,
        "axes": axes,
        "config": {"engine": {"engine": "builtin", **axes}, "run": {"steps": 3, "repeats": 3}},
    }
    if outcome != "ok":
        return Record(**common, outcome=outcome, error=Failure("exit", "killed by signal 9", "logs/x.log"))
    return Record(
        **common,
        outcome="ok",
        timing=Timing(
            [step_s] * 3,
            step_s,
            1000 / step_s,
            10 / step_s,
            None,
            {"forward": 0.4 * step_s, "backward": 0.6 * step_s},
        ),
        memory=Memory(peak, 2 * peak, 3 * peak, {"parameters": peak // 2, "gradients": peak // 2}),
        traffic={"all_reduce": Traffic(2, traffic)},
        correctness=Correctness(verdict, error_ratio=1.0),
    )


def trial(steps: Sequence[float], **keywords: Any) -> list[Record]:
    """Return one record a step time, as repeats of one configuration."""
    return [record(step_s, repeat=i, **keywords) for i, step_s in enumerate(steps)]


def results(records: Sequence[Record], name: str = "base", **source: Any) -> RunResults:
    """Return a run of these records on the example machine."""
    keywords = {"fingerprint": "f00d", "facts": MACHINE, "sweep": "example"} | source
    return RunResults(Source(name, **keywords), group_records(records))


def write_run(directory: Path, records: Sequence[Record], **environment: Any) -> Path:
    """Write a run directory as the recorder does; return it."""
    directory.mkdir(parents=True)
    (directory / "spec.yaml").write_text("schema_version: 1\nname: example\n")
    document = {"schema_version": 1, "fingerprint": "f00d", "facts": MACHINE} | environment
    (directory / "environment.json").write_text(json.dumps(document))
    data = b"".join(lines.encode(replace(item, run_id=directory.name)) for item in records)
    (directory / "trials.jsonl").write_bytes(data)
    return directory
