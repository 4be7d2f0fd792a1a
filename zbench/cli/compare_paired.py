"""`zbench compare --paired`: measure two versions side by side on this machine, and decide."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zbench.analysis.compare import Comparison, Settings
from zbench.analysis.measurement import PairedMeasurement, Plan, Question, check_plan
from zbench.analysis.paired import Side
from zbench.analysis.settings import parse_percent
from zbench.analysis.trials import Source
from zbench.cli import console
from zbench.errors import UsageError
from zbench.launch.revisions import Version, version_of
from zbench.launch.sampling import Sampler
from zbench.record.record import Record
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep

_LEAST_BLOCKS, _MOST_BLOCKS = 8, 24


@dataclass(frozen=True, slots=True)
class PairedRequest:
    """What the command line asked for. blocks: the least and the most."""

    base: str
    head: str | None
    sweep: Path | None
    blocks: tuple[int, int]
    precision: str | None
    overrides: tuple[str, ...]
    seed: int | None
    save_baseline: str | None = None


def measure(request: PairedRequest, settings: Settings, question: Question | None = None) -> Comparison:
    """Install or find both versions, take their samples in turn, and return the comparison.

    question: what the blocks are to decide; None for a comparison's own, a change within the margin.
    """
    file, head = _checked(request)
    plan = _plan(request)
    check_plan(plan, settings.alpha)
    _require_trials(file, request.overrides)
    versions: dict[Side, Version] = {
        "base": version_of(request.base, console.note),
        "head": version_of(head, console.note),
    }
    samples = _Samples(Sampler(file, request.overrides, console.note), versions)
    sources = [
        Source(version.name, str(version.python), sweep=str(file), commit=version.commit)
        for version in versions.values()
    ]
    return PairedMeasurement(sources[0], sources[1], plan, settings, samples, console.note, question).run()


@dataclass(frozen=True, slots=True)
class _Samples:
    """Samples of the two versions (`analysis.measurement.SampleSource`)."""

    sampler: Sampler
    versions: Mapping[Side, Version]

    def take(self, side: Side) -> list[Record]:
        return self.sampler.take(self.versions[side])

    def take_in_turns(self, first: Side, second: Side) -> tuple[list[Record], list[Record]] | None:
        return self.sampler.take_in_turns(self.versions[first], self.versions[second])


def _checked(request: PairedRequest) -> tuple[Path, str]:
    if request.sweep is None:
        raise UsageError("--paired runs a sweep with both versions; name its file with --sweep FILE")
    if request.head is None:
        raise UsageError("--paired expects two revisions or interpreters: BASE and HEAD")
    if request.save_baseline is not None:
        raise UsageError("--save-baseline keeps stored results; a paired measurement has none, leave it out")
    return request.sweep, request.head


def _require_trials(file: Path, overrides: tuple[str, ...]) -> None:
    """Raise UsageError for a sweep that has nothing to run, reading it as this version does."""
    if not expand(load_sweep(file, list(overrides))).trials:
        raise UsageError(f"{file} has no configuration that can run; nothing to compare")


def _plan(request: PairedRequest) -> Plan:
    least, most = request.blocks
    wanted = None if request.precision is None else parse_percent(request.precision, "--precision")
    return Plan(least, most, None if wanted is None else math.log1p(wanted), request.seed or 0)


def parse_blocks(text: str | None) -> tuple[int, int]:
    """Return the least and the most blocks from `8:24` or `12`, which is both; 0 is none."""
    if text is None:
        return _LEAST_BLOCKS, _MOST_BLOCKS
    least, colon, most = text.partition(":")
    words = [least, most if colon else least]
    if not all(word.isascii() and word.isdigit() for word in words) or (int(words[0]) == 0) != (
        int(words[1]) == 0
    ):
        raise UsageError(f"--blocks: expected a number of blocks or MIN:MAX, such as 8:24, got {text!r}")
    return int(words[0]), int(words[1])
