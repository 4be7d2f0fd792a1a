"""Compare two runs: every configuration of both, correctness first, then failures, then figures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from zbench.analysis import decision
from zbench.analysis.decision import Decision, Evidence, Paired, Unpaired
from zbench.analysis.exact import ExactChange, exact_changes
from zbench.analysis.matching import Match, match_trials
from zbench.analysis.paired import Blocks, Control
from zbench.analysis.trials import RunResults, Source, step_logs
from zbench.errors import ExitCode, IncomparableError
from zbench.record.record import VERDICT_ORDER
from zbench.record.summary import ConfigSummary

FailOn = Literal["regression", "inconclusive", "missing", "correctness"]
FAIL_ON: tuple[FailOn, ...] = ("regression", "inconclusive", "missing", "correctness")
RowAnswer = Literal["incorrect", "failed", "regression", "inconclusive", "unmeasured", "pass"]
ROW_ORDER: tuple[RowAnswer, ...] = get_args(RowAnswer)
STORED_THRESHOLDS: Mapping[str, float] = {
    "step_time": 0.05,
    "peak_device_bytes": 0.01,
    "peak_host_bytes": 0.01,
    "traffic_bytes": 0.01,
    "traffic_calls": 0.01,
}
"""The accepted change of every compared metric, as a fraction; smaller is better for each."""

PAIRED_THRESHOLDS: Mapping[str, float] = {**STORED_THRESHOLDS, "step_time": 0.02}
"""Side by side the machine's noise between runs is gone, so a smaller slowdown can be told."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How runs are compared. Thresholds are fractions; `run_noise` is the spread between runs, a fraction."""

    alpha: float = 0.01
    thresholds: Mapping[str, float] = field(default_factory=lambda: STORED_THRESHOLDS)
    run_noise: float = 0.01
    fail_on: frozenset[FailOn] = frozenset(FAIL_ON)
    across: bool = False

    def margin(self, metric: str) -> float:
        """Return the threshold of a metric as a logarithm."""
        return math.log1p(self.thresholds.get(metric, 0.0))


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration in both runs. `step_time` is None where a side has no finished repeat.

    `unmeasured` answers where neither side has one: both ran out of memory, say, and nothing changed.
    """

    match: Match
    step_time: Decision | None
    exact: tuple[ExactChange, ...]
    answer: RowAnswer

    @property
    def base(self) -> ConfigSummary:
        """Return the trial in the base run."""
        return self.match.base

    @property
    def head(self) -> ConfigSummary:
        """Return the trial in the head run."""
        return self.match.head

    @property
    def verdict_lowered(self) -> bool:
        """Say whether head is proved less than base was: a lower verdict, or none where base had one."""
        return VERDICT_ORDER.index(self.head.verdict) < VERDICT_ORDER.index(self.base.verdict)


@dataclass(frozen=True, slots=True)
class PairedData:
    """What a paired measurement saw: its blocks, the fresh ones of alarmed trials, and the control."""

    blocks: Blocks
    confirming: Blocks
    control: Control


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `zbench compare`. `unlike` says how two machines differ, if `--across` insisted."""

    base: Source
    head: Source
    settings: Settings
    rows: tuple[Row, ...]
    missing: tuple[ConfigSummary, ...]
    added: tuple[ConfigSummary, ...]
    unlike: tuple[str, ...] = ()
    paired: PairedData | None = None

    @property
    def timed(self) -> list[tuple[Row, Decision]]:
        """Return the rows with a step-time decision."""
        return [(row, row.step_time) for row in self.rows if row.step_time is not None]

    @property
    def geometric_mean(self) -> float | None:
        """Return the mean change of step time over all configurations as a fraction, by geometric mean."""
        logs = [found.log_ratio for _, found in self.timed]
        return math.expm1(sum(logs) / len(logs)) if logs else None

    @property
    def worst(self) -> Row | None:
        """Return the configuration that slowed most."""
        return max(self.timed, key=lambda pair: pair[1].log_ratio, default=(None,))[0]

    @property
    def best(self) -> Row | None:
        """Return the configuration that gained most."""
        return min(self.timed, key=lambda pair: pair[1].log_ratio, default=(None,))[0]

    def count(self, answer: RowAnswer) -> int:
        """Return how many rows got this answer."""
        return sum(row.answer == answer for row in self.rows)

    @property
    def exit_code(self) -> ExitCode:
        """Return what the command exits with: correctness first, then failures, regressions, doubt."""
        fail_on = self.settings.fail_on
        if "correctness" in fail_on and (self.count("incorrect") or self._added_incorrect()):
            return ExitCode.CORRECTNESS
        if "missing" in fail_on and (self.missing or self.count("failed")):
            return ExitCode.TRIALS_FAILED
        if "regression" in fail_on and any(_regressed(row) for row in self.rows):
            return ExitCode.REGRESSION
        if "inconclusive" in fail_on and self.count("inconclusive"):
            return ExitCode.INCONCLUSIVE
        return ExitCode.PASS

    def _added_incorrect(self) -> bool:
        return any(_incorrect(trial) for trial in self.added)


def compare_runs(base: RunResults, head: RunResults, settings: Settings) -> Comparison:
    """Compare two stored runs, made at two times: unpaired, with the machine's noise between runs added.

    IncomparableError where the machines are unlike (unless `settings.across`) or no configuration is in both.
    """
    unlike = unlike_facts(base.source, head.source)
    if unlike and not settings.across:
        raise IncomparableError(
            f"{base.source.name} and {head.source.name} were measured on unlike machines "
            f"({'; '.join(unlike)}); measure both on one machine, or insist with --across"
        )
    return build(base, head, settings, unlike=unlike)


def build(
    base: RunResults,
    head: RunResults,
    settings: Settings,
    *,
    decisions: Mapping[str, Decision] | None = None,
    unlike: tuple[str, ...] = (),
    paired: PairedData | None = None,
) -> Comparison:
    """Assemble a comparison; `decisions` of a paired measurement are by base trial id, else made here."""
    matching = match_trials(base.trials, head.trials)
    if not matching.matches:
        raise IncomparableError(_nothing_in_common(base, head))
    if decisions is None:
        decisions = decision.decide(_stored_family(matching.matches, settings), settings.alpha)
    rows = tuple(_row(match, decisions.get(match.base.trial_id), settings) for match in matching.matches)
    return Comparison(
        base.source, head.source, settings, rows, matching.missing, matching.added, unlike, paired
    )


def paired_family(differences: Blocks, settings: Settings) -> dict[str, tuple[Evidence, float]]:
    """Return the step-time family of a paired measurement from block differences by base trial id."""
    return {name: (Paired(values), settings.margin("step_time")) for name, values in differences.items()}


def _stored_family(matches: tuple[Match, ...], settings: Settings) -> dict[str, tuple[Evidence, float]]:
    family: dict[str, tuple[Evidence, float]] = {}
    for match in matches:
        base, head = step_logs(match.base), step_logs(match.head)
        if base and head:
            evidence = Unpaired(base, head, math.log1p(settings.run_noise))
            family[match.base.trial_id] = (evidence, settings.margin("step_time"))
    return family


def _row(match: Match, step_time: Decision | None, settings: Settings) -> Row:
    exact = exact_changes(match.base, match.head, settings.thresholds)
    row = Row(match, step_time, exact, "pass")
    return Row(match, step_time, exact, _row_answer(row))


def _row_answer(row: Row) -> RowAnswer:
    if _incorrect(row.head):
        return "incorrect"
    if row.head.outcome != "ok" and row.base.outcome == "ok":
        return "failed"
    if _regressed(row):
        return "regression"
    if not row.base.ok and not row.head.ok:
        return "unmeasured"
    undecided = row.step_time is not None and row.step_time.answer == "inconclusive"
    return (
        "inconclusive" if undecided or (row.verdict_lowered and row.head.verdict == "unchecked") else "pass"
    )


def _incorrect(trial: ConfigSummary) -> bool:
    return trial.verdict in ("drifted", "wrong")


def _regressed(row: Row) -> bool:
    slower = row.step_time is not None and row.step_time.answer == "regression"
    return slower or any(change.answer == "regression" for change in row.exact)


def unlike_facts(base: Source, head: Source) -> tuple[str, ...]:
    """Return the stable facts in which two machines differ, as `key: a, b`; empty where they are alike.

    Where nothing is known of a machine, that is a difference too: silence would be a guess.
    """
    unknown = tuple(f"{source.name}: machine unknown" for source in (base, head) if not source.facts)
    if unknown:
        return unknown
    keys = sorted(base.facts.keys() | head.facts.keys())
    return tuple(
        f"{key}: {base.facts.get(key)}, {head.facts.get(key)}"
        for key in keys
        if base.facts.get(key) != head.facts.get(key)
    )


def _nothing_in_common(base: RunResults, head: RunResults) -> str:
    sides = [
        f"{run.source.name} has {len(run.trials)} of sweep {run.source.sweep or '(unknown)'}"
        for run in (base, head)
    ]
    return f"no configuration is in both: {', '.join(sides)}; compare two runs of the same sweep file"
