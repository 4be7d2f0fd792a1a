"""`zbench doctor --aa`: compare this version with itself, and say what this machine can tell apart."""

import dataclasses
import json
import math
import sys
import tempfile
from pathlib import Path

from zbench.analysis.compare import PAIRED_THRESHOLDS, Settings
from zbench.analysis.noise import NoiseReport, noise_report
from zbench.cli import console
from zbench.cli.compare_paired import PairedRequest, measure, parse_blocks
from zbench.errors import ExitCode

_SWEEP = {
    "name": "noise",
    "workload": {"model": "gpt", "preset": "nano", "sequence_length": 64},
    "run": {"world_size": 2, "warmup_steps": 3, "steps": 20},
    "axes": {"zero_stage": [0, 1, 2]},
    "verify": {"mode": "off"},
}


def report_noise(sweep: Path | None, blocks: str | None, seed: int | None) -> ExitCode:
    """Measure, print what was found (a document with --json), and return 1 if there was a false alarm."""
    with tempfile.TemporaryDirectory(prefix="zbench-noise-") as scratch:
        file = sweep or Path(scratch) / "noise.json"
        if sweep is None:
            file.write_text(json.dumps(_SWEEP))
        request = PairedRequest(sys.executable, sys.executable, file, parse_blocks(blocks), None, (), seed)
        comparison = measure(request, Settings(thresholds=PAIRED_THRESHOLDS))
    found = noise_report(comparison)
    code = ExitCode.REGRESSION if found.alarms else ExitCode.PASS
    if console.state.json:
        console.document(_document(found) | {"exit_code": int(code)})
    else:
        for line in _lines(found):
            console.result(line)
    return code


def _document(found: NoiseReport) -> dict[str, object]:
    values = dataclasses.asdict(found)
    unknown = {key: None for key, v in values.items() if isinstance(v, float) and not math.isfinite(v)}
    return {"schema_version": 1, "aa": values | unknown}


def _lines(found: NoiseReport) -> list[str]:
    size = f"{found.comparisons} configurations, {found.blocks} blocks"
    return [
        f"A against A: {size}, {found.alarms} false alarms",
        f"noise of one block      {found.noise:.1%} (the noisiest configuration)",
        f"drift, start to end     {found.drift:+.1%}",
        f"margin to use           --threshold step_time={100 * found.margin:.3g}% with --paired",
        f"smallest slowdown found {found.detectable:.1%} (nine times in ten, at that margin)",
        f"noise between runs      --run-noise {100 * found.run_noise:.2g}% for stored runs",
    ]
