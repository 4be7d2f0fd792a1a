"""zbench in Python and notebooks: load a run, run a sweep, compare two runs.

run = zbench.sweep("quickstart", set={"world_size": 2})
run.best, run.recommended, run.trials[0].number("tokens_per_s")
run.to_pandas()
zbench.compare("last~1", run).answers
zbench.estimate("hf:Llama-3-8B", set={"world_size": 64}, device_memory="80Gi").fitting
"""

import io
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.analysis import settings
from zbench.analysis.compare import Comparison
from zbench.analysis.ranking import Ranking, rank_run
from zbench.analysis.rows import Row
from zbench.app import DEFAULT_OUTPUT_DIR
from zbench.app.compare import compare_stored
from zbench.app.estimate import Forecast, forecast
from zbench.app.estimate_columns import estimate_documents
from zbench.app.request import Request, from_file
from zbench.app.sweep import measured
from zbench.app.typed import cards_typed, token_count
from zbench.app.voice import Voice
from zbench.errors import ExitCode, UsageError
from zbench.estimate.result import Capacity
from zbench.estimate.row import EstimateRow
from zbench.record.record import Record
from zbench.record.store import SPEC, load_records, resolve_run
from zbench.record.summary import ConfigSummary, summarize
from zbench.report.columns import page_table
from zbench.report.exports import csv, frame, texts
from zbench.report.html.page import table_html
from zbench.report.screen import Screen, print_table
from zbench.report.table import in_order, print_results
from zbench.spec.load import command_line, recorded_objective, sweep_from_mapping
from zbench.units import parse_bytes

if TYPE_CHECKING:
    import pandas


_WIDTH = 160  # columns of a printed table, where the terminal is not wider


@dataclass(frozen=True, repr=False)
class Results:
    """The results of a run.

    path: its directory. records: one for each repeat. trials: its configurations in the order of
    `zbench show`. ranking: which of them is the best, or which are tied.
    """

    path: Path
    records: Sequence[Record]
    trials: Sequence[ConfigSummary]
    ranking: Ranking

    @classmethod
    def at(cls, path: Path) -> "Results":
        """Return the results in a run directory."""
        records = load_records(path)
        objective = recorded_objective(path / SPEC)
        trials = in_order(summarize(records), objective)
        return cls(path, records, trials, rank_run(path, trials, objective))

    @property
    def best(self) -> ConfigSummary | None:
        """Return the configuration that is better than all others; None if several may be the best."""
        return next((trial for trial in self.trials if trial.trial_id == self.ranking.best), None)

    @property
    def recommended(self) -> ConfigSummary | None:
        """Return the best or, if several are tied, the one of them that needs the least memory."""
        return next((trial for trial in self.trials if trial.trial_id == self.ranking.recommended), None)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a data frame with the rows of `zbench show --format csv`, one for each configuration."""
        return frame.frame(frame.flat_rows(self.trials, self.ranking))

    def __repr__(self) -> str:
        """Return the table of `zbench show`."""
        objective = recorded_objective(self.path / SPEC)
        width = max(shutil.get_terminal_size((_WIDTH, 0)).columns, _WIDTH)
        return _printed(
            lambda screen: print_results(screen, self.records, objective, self.path, self.ranking), width
        )

    def _repr_html_(self) -> str:
        return table_html(replace(page_table(self.trials, self.ranking), caption=str(self.path)))


@dataclass(frozen=True, repr=False)
class Compared:
    """The comparison of two runs."""

    comparison: Comparison

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of `zbench compare`: PASS, REGRESSION, INCONCLUSIVE, ..."""
        return self.comparison.exit_code

    @property
    def trials(self) -> Sequence[Row]:
        """Return a row for each configuration: `base`, `head`, `answer`, `step_time`, `exact`."""
        return self.comparison.rows

    @cached_property
    def answers(self) -> dict[str, str]:
        """Return trial ID of base -> regression, suspected, pass, inconclusive, incorrect, ..."""
        return {row.base.trial_id: row.answer for row in self.trials}

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a data frame with the rows of `zbench compare --format csv`, one for each configuration."""
        return frame.frame(list(map(csv.flat, self.trials)))

    def __repr__(self) -> str:
        """Return the summary of `zbench compare`."""
        return "\n".join(texts.summary(self.comparison))

    def _repr_html_(self) -> str:
        return table_html(texts.table(self.comparison))


@dataclass(frozen=True, repr=False)
class Estimates:
    """What every configuration of a sweep needs."""

    forecast: Forecast

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of `zbench estimate`: REGRESSION if nothing fits."""
        return self.forecast.exit_code

    @property
    def trials(self) -> Sequence[EstimateRow]:
        """Return a row for each configuration: `trial`, `estimate` (None if not simulated), `fits`."""
        return self.forecast.rows

    @property
    def fitting(self) -> Sequence[EstimateRow]:
        """Return the rows that fit the memory that was given."""
        return [row for row in self.trials if row.fits]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a data frame with bytes: one row for each configuration, one column for each figure."""
        return frame.frame(estimate_documents(self.trials))

    def __repr__(self) -> str:
        """Return the table of `zbench estimate`."""
        return _printed(lambda screen: print_table(screen, self.forecast.table))

    def _repr_html_(self) -> str:
        return table_html(self.forecast.table)


def load(run: str | Path = "last", output_dir: str | Path = DEFAULT_OUTPUT_DIR) -> Results:
    """Return a run by its path, its ID, a tag, a sweep's name, `last` or `last~1`."""
    return Results.at(resolve_run(str(run), _path(output_dir, "output_dir")))


def sweep(
    source: str | Path | Mapping[str, Any],
    *,
    set: Mapping[str, Any] | None = None,
    output_dir: str | Path = DEFAULT_OUTPUT_DIR,
    quiet: bool = False,
) -> Results:
    """Run a sweep and return its results. Raises the error that ended it early; `zbench list` has the run.

    source: a sweep file, the name of a shipped one, or the content of one as a mapping; paths in a mapping
    are relative to the working directory. set: key -> value. quiet: show no progress on stderr.
    """
    texts_of_set, place = _settings(set), _path(output_dir, "output_dir")
    if isinstance(source, Mapping):
        asked = sweep_from_mapping(source, texts_of_set, inputs=True)
        request = Request(asked, Path.cwd(), place, settings=tuple(texts_of_set))
    else:
        request = from_file(_path(source, "source"), place, texts_of_set)
    if not request.sweep.search.is_listed:
        raise UsageError("this sweep is a search; run it by `zbench tune`, and load its results")
    path, _, failure = measured(request, Voice(quiet=quiet))
    if failure is not None:
        raise failure
    return Results.at(path)


def estimate(
    source: str | Path | Mapping[str, Any],
    *,
    set: Mapping[str, Any] | None = None,
    device_memory: int | str | None = None,
    host_memory: int | str | None = None,
    limits: bool = False,
    machine: str | None = None,
    tokens: int | str | None = None,
    price: float | None = None,
    jobs: int | None = None,
) -> Estimates:
    """Simulate every configuration of a sweep on tensors without data, as `zbench estimate` does.

    source: a sweep file, the name of a shipped one, a model such as `hf:Llama-3-8B`, or the content of a
    sweep file as a mapping. set: key -> value. device_memory, host_memory: of one device and of one node's
    host, in bytes or as a text such as `80Gi`. limits: also find the limits within which each one fits.
    machine: a GPU such as `H100` or `8xH100`, or a file of rates. tokens: to train, such as `"300B"`. price:
    of a GPU for an hour. Each row then has `time`, `tokens_per_s`, `mfu`, `training` and `cost`, too.
    """
    room = Capacity(
        *(parse_bytes(size) if isinstance(size, str) else size for size in (device_memory, host_memory))
    )
    named = source if isinstance(source, Mapping) else _path(source, "source")
    settings = _settings(set)
    cards = command_line([], cards_typed(machine, (set or {}).get("world_size")))
    count = None if tokens is None else token_count("tokens", tokens)
    return Estimates(
        forecast(
            named,
            [*cards, *settings],
            room=room,
            find_limits=limits,
            tokens=count,
            price=price,
            jobs=jobs,
        )
    )


def compare(
    base: str | Path | Results,
    head: str | Path | Results,
    *,
    thresholds: Mapping[str, str] | Iterable[str] = (),
    alpha: float = 0.01,
    across: bool = False,
    output_dir: str | Path = DEFAULT_OUTPUT_DIR,
) -> Compared:
    """Compare two runs, or baselines, as `zbench compare` does with these options.

    thresholds: such as `{"step_time": "3%"}`.
    """
    if isinstance(thresholds, Mapping):
        thresholds = [f"{metric}={share}" for metric, share in thresholds.items()]
    shares = settings.parse_thresholds(list(thresholds), paired=False)
    asked = settings.Settings(settings.check_alpha(alpha), shares, across=across)
    first, second = (str(one.path if isinstance(one, Results) else one) for one in (base, head))
    comparison = compare_stored(first, second, asked, _path(output_dir, "output_dir"), Voice())
    assert comparison is not None, "there are two sides"
    return Compared(comparison)


def _settings(values: Mapping[str, Any] | None) -> list[str]:
    """Return what `--set` would be given. UsageError for what is no mapping."""
    if values is not None and not isinstance(values, Mapping):
        raise UsageError(f"set: expected a mapping such as {{'zero_stage': 2}}, got {values!r}")
    return [f"{key}={json.dumps(value)}" for key, value in (values or {}).items()]


def _path(given: object, name: str) -> Path:
    if not isinstance(given, str | Path):
        raise UsageError(f"{name}: expected a path, got {given!r}")
    return Path(given)


def _printed(show: Callable[[Screen], None], width: int = _WIDTH) -> str:
    """Return what `show` prints, without colours."""
    out = io.StringIO()
    show(Screen(file=out, width=width, no_color=True))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
