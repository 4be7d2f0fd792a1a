"""`zbench compare --paired`: measure two versions side by side on this machine, and decide."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zbench.cli import console
from zbench.errors import UsageError

if TYPE_CHECKING:
    from zbench.analysis.compare import Comparison, Settings
    from zbench.analysis.measurement import Plan

_LEAST_BLOCKS = 12


@dataclass(frozen=True, slots=True)
class PairedRequest:
    """What the command line asked for."""

    base: str
    head: str | None
    sweep: Path | None
    blocks: str | None
    precision: str | None
    overrides: tuple[str, ...]
    seed: int | None
    save_baseline: str | None = None


def measure(request: PairedRequest, settings: "Settings") -> "Comparison":
    """Install or find both versions, take their samples in turn, and return the comparison."""
    from zbench.analysis.measurement import PairedMeasurement, check_plan
    from zbench.analysis.paired import Side
    from zbench.analysis.trials import Source
    from zbench.launch.revisions import Version, version_of
    from zbench.launch.sampling import Sampler
    from zbench.record.record import Record

    file, head = _checked(request)
    plan = _plan(request, settings)
    check_plan(plan, _comparisons(file, request.overrides), settings.alpha)
    versions: dict[Side, Version] = {
        "base": version_of(request.base, console.note),
        "head": version_of(head, console.note),
    }
    sampler = Sampler(file, request.overrides)

    def take(side: Side) -> list[Record]:
        return sampler.take(versions[side])

    sources = [
        Source(version.name, str(version.python), sweep=str(file), commit=version.commit)
        for version in versions.values()
    ]
    return PairedMeasurement(sources[0], sources[1], plan, settings, take, console.note).run()


def _checked(request: PairedRequest) -> tuple[Path, str]:
    if request.sweep is None:
        raise UsageError("--paired runs a sweep with both versions; name its file with --sweep FILE")
    if request.head is None:
        raise UsageError("--paired expects two revisions or interpreters: BASE and HEAD")
    if request.save_baseline is not None:
        raise UsageError("--save-baseline keeps stored results; a paired measurement has none, leave it out")
    return request.sweep, request.head


def _comparisons(file: Path, overrides: tuple[str, ...]) -> int:
    """Return how many configurations the sweep has, reading it as this version does."""
    from zbench.spec.expand import expand
    from zbench.spec.load import load_sweep

    trials = len(expand(load_sweep(file, list(overrides))).trials)
    if not trials:
        raise UsageError(f"{file} has no configuration that can run; nothing to compare")
    return trials


def _plan(request: PairedRequest, settings: "Settings") -> "Plan":
    from zbench.analysis.measurement import Plan
    from zbench.analysis.thresholds import parse_percent

    least, most = _blocks(request.blocks)
    margin = settings.thresholds["step_time"]
    wanted = margin if request.precision is None else parse_percent(request.precision, "--precision")
    return Plan(least, most, math.log1p(wanted), request.seed or 0)


def _blocks(text: str | None) -> tuple[int, int]:
    """Return the least and the most blocks from `12:24` or `12`, which is both."""
    if text is None:
        return _LEAST_BLOCKS, 2 * _LEAST_BLOCKS
    least, colon, most = text.partition(":")
    words = [least, most if colon else least]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"--blocks: expected a number of blocks or MIN:MAX, such as 12:24, got {text!r}")
    return int(words[0]), int(words[1])
