"""Compare two runs: every configuration of both, correctness first, then failures, then figures.

From records to an exit code: `rows` matches trials, and `trials` chooses the repeats that count. `decision`
decides about step times, `exact` about figures without noise. `rows` gives each configuration one answer, and
`Comparison.exit_code` combines all answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from zbench.analysis import decision, trials
from zbench.analysis.decision import Decision, Family, change_of
from zbench.analysis.evidence import Evidence, of_runs, over_part
from zbench.analysis.paired import Blocks, block_differences
from zbench.analysis.rows import Pair, Row, RowAnswer, judged, match_trials
from zbench.analysis.settings import Settings
from zbench.analysis.trials import PLAIN, RunResults, Source
from zbench.errors import ExitCode, IncomparableError, UsageError
from zbench.record.summary import ConfigSummary, has_failed, is_incorrect, known_rate

_DOUBTS: tuple[RowAnswer, ...] = ("suspected", "unchecked", "inconclusive")
"""Answers that end with 3; naming `inconclusive` in `--fail-on` names them all."""


@dataclass(frozen=True, slots=True)
class PairedData:
    """The data of a paired measurement: its blocks; `exact_only` if nothing was timed.

    drift: by which fraction base itself became slower from the first blocks to the last, in the configuration
    that moved most; None where no block shows it. stopped: why it ended before its plan was complete, in
    words; empty if it was complete.
    """

    blocks: Blocks
    drift: float | None
    exact_only: bool
    stopped: str = ""

    @property
    def differences(self) -> dict[str, tuple[float, ...]]:
        """Return the logarithm of head over base of each block, by base's trial id."""
        return {name: block_differences(cells) for name, cells in self.blocks.items()}


@dataclass(frozen=True)
class Comparison:
    """The result of `zbench compare`. `unlike`: how the two machines differ, with `--across`.

    no_yardstick: why some configurations of two stored runs were not compared with the machine's yardstick.
    """

    base: Source
    head: Source
    settings: Settings
    rows: tuple[Row, ...]
    missing: tuple[ConfigSummary, ...]
    added: tuple[ConfigSummary, ...]
    unlike: tuple[str, ...] = ()
    paired: PairedData | None = None
    no_yardstick: str = ""

    @property
    def timed(self) -> list[tuple[Row, Decision]]:
        """Return the rows with a step-time decision."""
        return [(row, row.step_time) for row in self.rows if row.step_time is not None]

    @cached_property
    def rate(self) -> str:
        """Return the rate that both sides' configurations have, one of `zbench.spec.metrics.RATES`."""
        return known_rate(trial for row in self.rows for trial in (row.base, row.head))

    @property
    def geometric_mean(self) -> float | None:
        """Return the mean change of step time over all configurations as a fraction, by geometric mean."""
        logs = [decision.log_ratio for _, decision in self.timed]
        return change_of(sum(logs) / len(logs)) if logs else None

    @property
    def worst(self) -> Row | None:
        """Return the configuration that slowed most."""
        return max(self.timed, key=lambda pair: pair[1].change, default=(None,))[0]

    @property
    def best(self) -> Row | None:
        """Return the configuration that gained most."""
        return min(self.timed, key=lambda pair: pair[1].change, default=(None,))[0]

    def count(self, answer: RowAnswer) -> int:
        """Return how many rows got this answer."""
        return sum(row.answer == answer for row in self.rows)

    @property
    def warnings(self) -> list[str]:
        """Return the disturbances of both sides' repeats, in words."""
        sides = (("base", [row.base for row in self.rows]), ("head", [row.head for row in self.rows]))
        return [f"{name}: {text}" for name, side in sides for text in trials.all_warnings(side)]

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code: correctness comes first, then failures, regressions, undecided answers."""
        fail_on = self.settings.fail_on
        if "correctness" in fail_on and (self.count("incorrect") or any(map(is_incorrect, self.added))):
            return ExitCode.CORRECTNESS
        has_failures = self.count("failed") or any(map(has_failed, self.added))
        if "missing" in fail_on and (self.missing or has_failures):
            return ExitCode.TRIALS_FAILED
        slower = any(decision.answer == "regression" for _, decision in self.timed)
        if "regression" in fail_on and (slower or any(row.exact_with("regression") for row in self.rows)):
            return ExitCode.REGRESSION
        if any({doubt, "inconclusive"} & fail_on and self.count(doubt) for doubt in _DOUBTS):
            return ExitCode.INCONCLUSIVE
        return ExitCode.PASS


def compare_runs(base: RunResults, head: RunResults, settings: Settings) -> Comparison:
    """Compare two stored runs, measured at different times, with the machine's yardstick.

    Each repeat is divided by each part of the yardstick in its own heat, as far as the repeats may follow
    that part. An answer needs the agreement of all parts and of the time itself. Without a yardstick
    nothing is said of time but that it is to be measured paired. IncomparableError if the machines are
    unlike (unless `settings.across`) or no configuration is in both.
    """
    unlike = unlike_machines(base, head)
    if unlike and not settings.across:
        raise IncomparableError(
            f"{base.source.name} and {head.source.name} were measured on unlike machines "
            f"({'; '.join(unlike)}); measure both on one machine, or compare anyway with --across"
        )
    pairs = {pair[0].trial_id: pair for pair in match_trials(base.trials, head.trials).pairs}
    gaps = {name: _yardstick_gap(base.source, head.source, pair) for name, pair in pairs.items()}
    beside = {name: pair for name, pair in pairs.items() if not gaps[name]}
    decisions = _stored_decisions(beside, settings)
    for name, pair in pairs.items():
        if gaps[name] and all(trials.step_logs(trial) for trial in pair):
            decisions[name] = _refused(pair, settings)
    why = next((gap for name, gap in gaps.items() if gap and name in decisions), "")
    return replace(build(base, head, settings, decisions, unlike=unlike), no_yardstick=why)


def require_two_runs(base: Source, head: Source) -> None:
    """Raise UsageError for a run that is compared with itself: it would always pass."""
    if base.run_ids and base.run_ids == head.run_ids:
        raise UsageError(
            f"{base.name} and {head.name} are the same run ({', '.join(base.run_ids)}); comparing a run with "
            "itself shows nothing; name two runs, as `last~1 last`"
        )


def build(
    base: RunResults,
    head: RunResults,
    settings: Settings,
    decisions: Mapping[str, Decision],
    *,
    unlike: tuple[str, ...] = (),
    paired: PairedData | None = None,
) -> Comparison:
    """Assemble a comparison from the step-time decisions by base's trial id."""
    matching = match_trials(base.trials, head.trials)
    if not matching.pairs:
        first, second = (
            f"{run.source.name} has {len(run.trials)} of sweep {run.source.sweep or '(unknown)'}"
            for run in (base, head)
        )
        raise IncomparableError(
            f"no configuration is in both: {first}, {second}; compare runs of one sweep file and settings"
        )
    rows = tuple(judged(pair, decisions.get(pair[0].trial_id), settings) for pair in matching.pairs)
    return Comparison(
        base.source, head.source, settings, rows, matching.missing, matching.added, unlike, paired
    )


def _stored_decisions(pairs: Mapping[str, Pair], settings: Settings) -> dict[str, Decision]:
    """Return the decisions by base's trial id, over all parts of the yardstick and by the plain time."""
    logs = {name: [trials.turn_logs(trial) for trial in pair] for name, pair in pairs.items()}
    if not logs:
        return {}
    margin = settings.margin("step_time")
    parts = dict[str, Family]()
    for part in next(iter(logs.values()))[0]:
        parts[part] = {name: (_beside(part, *sides), margin) for name, sides in logs.items()}
    return decision.decide_over(parts, settings.alpha)


def _beside(part: str, base: trials.Logs, head: trials.Logs) -> Evidence:
    plain_logs = (base[PLAIN], head[PLAIN])
    return of_runs(*plain_logs) if part == PLAIN else over_part(plain_logs, (base[part], head[part]))


def _refused(pair: Pair, settings: Settings) -> Decision:
    """Return the estimate of two runs without a common yardstick: no number of repeats makes it an answer."""
    base, head = (trials.step_logs(trial) for trial in pair)
    family = {"": (of_runs(base, head), settings.margin("step_time"))}
    reason = "two stored runs without a common yardstick do not show what the machine did between them"
    return decision.refused(
        decision.decide(family, settings.alpha)[""],
        f"{reason}; measure it paired: zbench compare BASE HEAD --paired --sweep FILE",
    )


def _yardstick_gap(base: Source, head: Source, pair: Pair) -> str:
    """Return why two trials cannot be compared over the machine's yardstick; empty if they can."""
    sides = list(zip((base.name, head.name), pair, strict=True))
    lacking = [name for name, trial in sides if not trials.turn_logs(trial)]
    few = [name for name, trial in sides if trials.has_yardstick(trial) and name in lacking]
    if few:
        least = trials.LEAST_BESIDE_YARDSTICK
        remedy = " and ".join(f"zbench sweep --resume {name} --repeats {least}" for name in few)
        verb = "needs" if len(few) == 1 else "need"
        return f"{' and '.join(few)} {verb} {least} repeats that took turns with it; run {remedy}"
    if lacking:
        return f"none took turns with three repeats of {' or '.join(lacking)} (`run.yardstick: [machine]`)"
    keys = ["cpu", "cores", "usable_threads", *(["gpus"] if any(map(trials.is_on_gpu, pair)) else [])]
    if any(base.facts.get(key) != head.facts.get(key) for key in keys):
        return "it cannot compare another CPU or GPU, or other cores"
    versions = [trials.yardstick_versions(trial) for trial in pair]
    if versions[0] != versions[1] or len(versions[0]) > 1:
        each = ", ".join(
            f"{name} {' and '.join(map(str, v))}" for (name, _), v in zip(sides, versions, strict=True)
        )
        return f"it has another version ({each}); measure both with one version of zbench"
    return ""


def unlike_machines(base: RunResults, head: RunResults) -> tuple[str, ...]:
    """Return the stable facts in which two machines differ, as `key: a, b`; empty if they are alike.

    An unknown machine counts as different. If the facts are alike, the kinds of the machines on which the
    repeats ran are compared, if they are known.
    """
    unknown = tuple(f"{run.source.name}: machine unknown" for run in (base, head) if not run.source.facts)
    if unknown:
        return unknown
    before, after = base.source.facts, head.source.facts
    keys = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
    unlike = tuple(f"{key}: {before.get(key)}, {after.get(key)}" for key in keys)
    kinds = (base.machines, head.machines)
    if unlike or not all(kinds) or kinds[0] == kinds[1]:
        return unlike
    return ("ran on: " + ", ".join(" and ".join(sorted(names)) for names in kinds),)
