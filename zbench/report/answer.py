"""What a run answers, in words: how far each row can be from the best, what choices cost, and what to use."""

import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from zbench.analysis.ranking import Ranking
from zbench.record.store import SEARCH
from zbench.record.summary import ConfigSummary, obstacles, point, varied_keys
from zbench.report.text import axes_text, figure_text, plural, throughput_text, value_text
from zbench.spec.metrics import METRICS, TIMED
from zbench.spec.sweep import ObjectiveSpec

if TYPE_CHECKING:
    from zbench.analysis.effects import Effect

CLOSE = 0.05
"""Leaders that may be farther apart than this are worth another look."""

_MOST_EFFECTS = 8
_MOST_REPEATS = 20  # as run.max_repeats has it


def worse(objective: ObjectiveSpec) -> str:
    """Return the word for a configuration that is behind the best by the first goal."""
    return "slower" if METRICS[objective.goals[0].metric].unit in TIMED else "worse"


def bound_text(summary: ConfigSummary, ranking: Ranking) -> str:
    """Return by how much a configuration is worse than the best: `at most 9 %` of one that may be the best,
    `4 to 12 %` of others.

    Both ends are rounded outward. Empty for the best, and for a configuration that takes no part.
    """
    name = summary.trial_id
    if name == ranking.best or not (name in ranking.worse_by or name in ranking.indistinguishable):
        return ""
    if len(summary.ok) == 1:
        return "measured once"
    low, high = ranking.worse_by.get(name, 0.0), ranking.at_most.get(name)
    if high is None:
        return f"at least {_below(low)} %" if low > 0 else "not known"
    if high > 1:
        return f"{1 + low:.1f} to {1 + high:.1f} times" if low > 0 else f"at most {1 + high:.1f} times"
    if low == 0 and name in ranking.indistinguishable:
        return f"at most {_above(high)} %"
    return f"{_below(low)} to {_above(high)} %"


def _above(share: float) -> str:
    return f"{math.ceil(100 * share - 1e-9)}" if share >= 0.01 else f"{math.ceil(1000 * share - 1e-9) / 10:g}"


def _below(share: float) -> str:
    return f"{math.floor(100 * share + 1e-9)}" if share >= 0.01 else f"{math.floor(1000 * share) / 10:g}"


def effect_text(effect: "Effect") -> str:
    """Return `reduce_bucket_size: 100k against 5M +12.1 % (+8.9 to +15.3), 5 pairs`."""
    ends = "" if effect.low is None or effect.high is None else _interval(effect.low, effect.high)
    comparison = f"{effect.axis}: {value_text(effect.value)} against {value_text(effect.against)}"
    text = f"{comparison} {100 * effect.change:+.1f} %{ends}, {plural(effect.pairs, 'pair')}"
    if effect.exception is None or effect.change_there is None:
        return text
    where = axes_text(dict([effect.exception]))
    return (
        f"{text}; not where {where}"
        if effect.is_none_there
        else (f"{text}; {100 * effect.change_there:+.1f} % where {where}")
    )


def _interval(low: float, high: float) -> str:
    return f" ({100 * low:+.1f} to {100 * high:+.1f})" if high < 10 else " (not known within a factor of 10)"


def effect_lines(ranking: Ranking, objective: ObjectiveSpec) -> list[Text]:
    """Return what each choice costs against that of the recommended configuration, the largest first."""
    if not ranking.effects:
        return []
    shown = ranking.effects[:_MOST_EFFECTS]
    more = len(ranking.effects) - len(shown)
    behind = worse(objective)
    heading = f"what each choice costs (+ is {behind}; 95 % intervals), in pairs that differ in it alone:"
    rest = [f"  and {more} more (--json has all)"] if more else []
    return [Text(heading, "bold"), *(Text(f"  {effect_text(one)}") for one in shown), *map(Text, rest)]


def answer_lines(
    summaries: Sequence[ConfigSummary], objective: ObjectiveSpec, ranking: Ranking, run_dir: Path | None
) -> list[Text]:
    """Return what to use and why, in a line; and one of what to run to know more."""
    chosen = next((s for s in summaries if s.trial_id == ranking.recommended), None)
    if chosen is None:
        return [Text(_why_none(summaries, objective, ranking))]
    axes = point(chosen, varied_keys(summaries))
    description = f"{axes_text(axes)}: {_figure(chosen, objective)}, {chosen.verdict}{chosen.uncovered}"
    if ranking.best is not None:
        least = min(ranking.worse_by.values(), default=0.0)
        ahead = f"; the others are at least {_below(least)} % {worse(objective)}" if least > 0 else ""
        return [Text.assemble(("* best", "bold green"), f" {description}{ahead}")]
    if ranking.load:
        why = f"not known: {ranking.load.partition(': ')[2]}"
        quiet = Text(
            "run it again when the machine is quiet, or with --cores (`zbench doctor` names free cores)"
        )
        return [Text.assemble(("≈* recommended", "bold green"), f" {description}; {why}"), quiet]
    bound = bound_text(chosen, ranking)
    bound = f"{bound} {worse(objective)} than whatever is best" if bound.startswith("at") else bound
    why = f"of the {len(ranking.indistinguishable)} that may be the best, {ranking.why}"
    line = Text.assemble(("≈* recommended", "bold green"), f" {description}; {bound} ({why})")
    return [line, *_next_lines(summaries, ranking, run_dir)]


def _figure(summary: ConfigSummary, objective: ObjectiveSpec) -> str:
    goal = objective.goals[0]
    if goal.metric != "tokens_per_s":
        return figure_text(summary, goal.metric)
    peak = f", peak {figure_text(summary, 'peak_device_bytes')}"
    return throughput_text(summary) + peak * (summary.number("peak_device_bytes") is not None)


def _why_none(summaries: Sequence[ConfigSummary], objective: ObjectiveSpec, ranking: Ranking) -> str:
    if ranking.pending:
        return f"no best yet: {plural(ranking.pending, 'configuration')} left to run"
    if not any(summary.ok for summary in summaries):
        return "no best: no configuration finished without errors; the lines above say why"
    reasons = dict.fromkeys(reason for s in summaries if s.ok for reason in obstacles(s, objective))
    if list(reasons) == ["unchecked"]:
        return "no best: nothing was verified, and only a correct configuration can be the best"
    why = "; ".join(list(reasons)[:3])
    return f"no best: no configuration is both correct and within the constraints ({why})"


def _next_lines(summaries: Sequence[ConfigSummary], ranking: Ranking, run_dir: Path | None) -> Iterator[Text]:
    """Return what to run to tell the leaders apart, and about how long that takes."""
    within = ranking.equal_within
    leaders = [s for s in summaries if s.trial_id in ranking.indistinguishable]
    if run_dir is None or (within is not None and within <= CLOSE) or (run_dir / SEARCH).exists():
        return
    if (leaders[0].config.get("run") or {}).get("separate") is not None:
        return  # it was asked for already
    done = max(len(summary.ok) for summary in leaders)
    ratio = math.log1p(within if within is not None else 1.0) / math.log1p(CLOSE)
    more = min(max(1, math.ceil(done * (ratio**2 - 1))), _MOST_REPEATS - done)
    seconds = [record.elapsed_s for summary in leaders for record in summary.ok[-1:]]
    if more < 1 or None in seconds:
        return
    minutes = math.ceil(more * math.fsum(one or 0.0 for one in seconds) / 60)
    command = f"zbench sweep --resume {shlex.quote(str(run_dir))} --separate {CLOSE:.0%}"
    yield Text(f"to tell the {len(leaders)} leaders apart, in about {minutes} min: {command}")
