"""What a command is asked to run: a sweep, from a file, a mapping or an earlier run, and its directories."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zbench.errors import UsageError
from zbench.masking import MASK, masked
from zbench.record.store import load_environment, resolve_run
from zbench.report.text import plural
from zbench.report.trackers import tracker_factory
from zbench.spec.keys import leaves
from zbench.spec.load import FlagSetting, load_sweep, read_sweep, sweep_file, sweep_from_mapping
from zbench.spec.sweep import SearchSpec, SweepSpec, sweep_document
from zbench.spec.trial import NOT_IDENTITY

_HOW_OFTEN = frozenset(f"run.{key}" for key in NOT_IDENTITY - {"memory_limit"})
"""Keys that may change when a run is continued: how often and how long configurations are measured."""


@dataclass(frozen=True, slots=True)
class Request:
    """A sweep to run, the directory that its relative paths start from, and the directory of results.

    run: the run directory to continue, None for a new one. source: the sweep file, if there is one.
    settings: the `--set` texts of the run. single: run only the base configuration, without axes.
    added: the `--set` texts that a continued run was not started with.
    trackers: names of the experiment trackers to log each repeat to.
    """

    sweep: SweepSpec
    base_dir: Path
    output_dir: Path
    run: Path | None = None
    source: Path | None = None
    settings: tuple[str, ...] = ()
    single: bool = False
    added: tuple[str, ...] = ()
    trackers: tuple[str, ...] = ()


def tracked(request: Request, trackers: Sequence[str]) -> Request:
    """Return the request with these trackers; UsageError, before anything runs, if one is not installed."""
    for name in trackers:
        tracker_factory(name)
    return replace(request, trackers=tuple(trackers))


def from_file(file: Path, output_dir: Path, settings: Sequence[str]) -> Request:
    """Return the request to run a sweep file."""
    file = sweep_file(file)
    sweep = load_sweep(file, settings)
    return Request(sweep, file.absolute().parent, output_dir, None, file.absolute(), tuple(settings))


def single(file: Path | None, output_dir: Path, settings: Sequence[str]) -> Request:
    """Return the request to run one configuration: a file's without its axes, or the default one."""
    if file is None:
        sweep = sweep_from_mapping({"name": "run"}, settings, inputs=True)
        return Request(sweep, Path.cwd(), output_dir, settings=tuple(settings))
    whole = from_file(file, output_dir, settings)
    return replace(whole, sweep=_without_axes(whole.sweep), single=True)


def resumed(run: str, output_dir: Path, file: Path | None, settings: Sequence[str]) -> Request:
    """Return the request to continue a run, after checking that its sweep is still the same.

    The sweep is read again from the file it came from (or the one given), with the settings it was started
    with. settings: may change how often and how long configurations are measured, and nothing else.
    """
    path = resolve_run(run, output_dir)
    invocation = load_environment(path).get("invocation", {})
    recorded = load_sweep(path / "spec.yaml", environ={}, inputs=False)
    named = invocation.get("sweep_file")
    flags = tuple(invocation.get("settings", ()))
    source = sweep_file(file) if file else Path(named) if named else None
    is_there = source is not None and source.exists()
    if file is not None and not is_there:
        raise UsageError(f"no such file: {file}")
    has_secrets = MASK in json.dumps(sweep_document(recorded))
    if has_secrets and (not is_there or any(MASK in text for text in flags)):
        raise UsageError(
            f"{path.name} cannot be resumed: its record masks its secrets, and no sweep file holds them; have"
            " the sweep file read them from the environment, and start a new run"
        )

    def read(*more: str) -> SweepSpec:
        if source is None or not is_there:
            return load_sweep(path / "spec.yaml", more, environ={}, inputs=False)
        sweep = load_sweep(source, [*flags, *more])
        return _without_axes(sweep) if invocation.get("single") else sweep

    base_dir = Path(invocation.get("base_dir") or path)
    if source is not None and is_there:
        is_another = named is not None and source.absolute() != Path(named).absolute()
        problem = (
            f"{path.name} was started from {named}, not from {source}"
            if is_another
            else f"{source} has changed since {path.name} was started"
        )
        remedy = "leave the file out" if is_another else "restore the file"
        remedy += " to continue that run, or start a new one without --resume"
        _require_same(recorded, read(), problem, remedy)
        base_dir = source.absolute().parent
    current = read(*settings)
    problem = f"--resume continues {path.name} as it was started"
    remedy = "leave that out, or start a new run (of a run that exists only {} can be changed)"
    _require_same(recorded, current, problem, remedy.format(", ".join(sorted(_HOW_OFTEN))), _HOW_OFTEN)
    return Request(current.placed(base_dir), base_dir, output_dir, path, source, flags, added=tuple(settings))


def to_search(
    file: Path | None, resume: str | None, output_dir: Path, settings: Sequence[str], method: str | None
) -> Request:
    """Return the request to search a file's axes: by TPE, unless the file or the flag names a search."""
    if resume is not None:
        request = resumed(resume, output_dir, file, settings)
        if request.sweep.search.is_listed and request.run is not None:
            name = request.run.name
            raise UsageError(
                f"{name} is a run of zbench sweep; continue it with zbench sweep --resume {name}"
            )
        return request
    assert file is not None
    document = read_sweep(sweep_file(file)).data
    default = [] if "objective" in document else ["objective.maximize=[tokens_per_s]"]
    search = document.get("search")
    named = search.get("method") if isinstance(search, dict) else None
    chosen = named if isinstance(named, str) and named not in ("grid", "covering") else "tpe"
    by = FlagSetting("search.method", "--method", method) if method else f"search.method={chosen}"
    return from_file(file, output_dir, [*default, *settings, by])


def _without_axes(sweep: SweepSpec) -> SweepSpec:
    return sweep.model_copy(update={"axes": {}, "exclude": [], "include": [], "search": SearchSpec()})


def _require_same(
    recorded: SweepSpec, now: SweepSpec, problem: str, remedy: str, free: Collection[str] = ()
) -> None:
    """Raise UsageError where a sweep is another one than was recorded, but for the keys in `free`."""
    before, after = (dict(leaves(masked(sweep_document(sweep)))) for sweep in (recorded, now))
    pairs = {key: (before.get(key, "absent"), after.get(key, "absent")) for key in {**before, **after}}
    changes = [
        f"{key} was {old}, is {new}" for key, (old, new) in pairs.items() if key not in free and old != new
    ]
    if changes:
        more = f" (and {plural(len(changes) - 1, 'more key')})" if len(changes) > 1 else ""
        raise UsageError(f"{problem}: {changes[0]}{more}; {remedy}")
