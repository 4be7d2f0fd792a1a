"""Compares two stored results, or measures two versions in turn and compares these."""

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from zbench import git
from zbench.analysis import sources as stored
from zbench.analysis.compare import Comparison, compare_runs, require_two_runs
from zbench.analysis.measurement import PairedMeasurement, Plan, Question, check_plan
from zbench.analysis.settings import Settings
from zbench.analysis.trials import Source
from zbench.app.voice import Voice
from zbench.errors import UsageError
from zbench.launch.pair import Sampler
from zbench.launch.revisions import Version, version_of
from zbench.launch.samples import KeptSamples
from zbench.record.environment import fingerprint, machine_facts
from zbench.record.store import new_run_id
from zbench.report.text import plural
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep
from zbench.spec.sweep import dump_sweep

_LEAST_BLOCKS, _MOST_BLOCKS = 8, 24


def compare_stored(
    base: str,
    head: str | None,
    settings: Settings,
    output_dir: Path,
    voice: Voice,
    save_baseline: str | None = None,
) -> Comparison | None:
    """Compare two stored results, and save the baseline; None if there is only one of them."""
    base = _branch(base) or base
    head = _branch(head)
    save_baseline = _branch(save_baseline)
    if head is None and save_baseline is None:
        raise UsageError("expected BASE and HEAD, or BASE and --save-baseline NAME to save it; add one")
    loaded = [stored.load_results(name, output_dir) for name in (base, head) if name is not None]
    for results in loaded:
        if results.source.path and stored.is_torn(Path(results.source.path)):
            voice.warn(f"{results.source.path} ends in the middle of a record, which is left out")
    comparison = None
    if len(loaded) == 2:
        require_two_runs(loaded[0].source, loaded[1].source)
        comparison = compare_runs(loaded[0], loaded[1], settings)
    if save_baseline is not None:
        place = stored.save_baseline(save_baseline, loaded[-1], output_dir)
        voice.note(
            f"baseline {save_baseline}: {place}; after the next run: zbench compare {save_baseline} last"
        )
    return comparison


def _branch(name: str | None) -> str | None:
    """Return the baseline's name for `@BRANCH`, or for `@`, the branch that is checked out here."""
    if name is None or not name.startswith("@"):
        return name
    branch = name[1:] or git.call("rev-parse", "--abbrev-ref", "HEAD").stdout.decode().strip()
    if not branch:
        raise UsageError("`@` names the branch checked out here, but this is no git repository; use a name")
    return stored.branch_baseline(branch)


def samples_file(output_dir: Path, resume: str | None) -> Path:
    """Return the file of a measurement's samples: a new one, or that of the measurement to continue."""
    place = output_dir / "paired"
    if resume is None:
        return place / f"{new_run_id(output_dir)}.jsonl"
    path = max(place.glob("*.jsonl"), default=place) if resume == "last" else Path(resume)
    if not path.is_file():
        raise UsageError(f"--resume {resume}: no such measurement; expected a file of {place}, or `last`")
    return path


def measure(
    sides: tuple[str, str],
    file: Path,
    blocks: tuple[int, int],
    settings: Settings,
    voice: Voice,
    *,
    overrides: Sequence[str] = (),
    seed: int | None = None,
    question: Question | None = None,
    sample_file: Path | None = None,
    max_seconds: float = math.inf,
) -> Comparison:
    """Install or find both versions, take their samples in turn, and return the comparison.

    sides: the revisions or interpreters of base and head. blocks: the least and the most. question: what the
    blocks decide; None asks whether the change is within the margin. sample_file: where samples are kept;
    None keeps none.
    """
    plan = Plan(*blocks, seed or 0)
    check_plan(plan)
    asked = load_sweep(file, list(overrides))
    if not expand(asked).trials:
        raise UsageError(f"{file} has no configuration that can run; `zbench plan {file}` prints why")
    with _versions(sides, voice) as (base, head):
        about = {
            "base": base.commit or str(base.python),
            "head": head.commit or str(head.python),
            "sweep": hashlib.sha256(dump_sweep(asked).encode()).hexdigest()[:16],
            "blocks": blocks,
            "seed": plan.seed,
            "alpha": settings.alpha,
            "machine": fingerprint(machine_facts()),
        }
        base_source, head_source = (
            Source(version.name, str(version.python), sweep=str(file), commit=version.commit)
            for version in (base, head)
        )
        with (
            closing(Sampler({"base": base, "head": head}, file, overrides, voice.note)) as sampler,
            closing(KeptSamples(sampler, sample_file, about, max_seconds=max_seconds)) as samples,
        ):
            if samples.damage:
                voice.warn(samples.damage)
            try:
                return PairedMeasurement(
                    base_source, head_source, plan, settings, samples, voice.note, question
                ).run()
            finally:
                if sample_file is not None:
                    count = plural(samples.taken, "sample")
                    go_on = f"the same command with --resume {sample_file} continues from there"
                    voice.note(f"{count} kept; {go_on}")


@contextmanager
def _versions(sides: tuple[str, str], voice: Voice) -> Iterator[tuple[Version, Version]]:
    """Install or find both versions; no other command removes their environments while the body runs."""
    with ExitStack() as stack:
        versions = []
        for side in sides:
            versions.append(version_of(side, voice.note))
            stack.callback(versions[-1].release)
        yield versions[0], versions[1]


def parse_blocks(text: str | None) -> tuple[int, int]:
    """Return the least and the most blocks of a text such as `8:24`, `12` (least and most) or `0` (none)."""
    if text is None:
        return _LEAST_BLOCKS, _MOST_BLOCKS
    match = re.fullmatch("([0-9]+)(?::([0-9]+))?", text)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 1)
    if (least == 0) != (most == 0):
        raise UsageError(f"--blocks: expected a number of blocks or MIN:MAX, such as 8:24, got {text!r}")
    return least, most
