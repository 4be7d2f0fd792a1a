"""What a search found, as the document that is kept as `search.json` and printed by `--json`. Pure."""

import json
from collections.abc import Iterable
from typing import Any

from zbench.analysis.ranking import rank
from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, obstacles, summarize
from zbench.spec.sweep import ObjectiveSpec
from zbench.tune.objective import Scorer
from zbench.tune.session import SearchOutcome


def search_document(
    outcome: SearchOutcome, objective: ObjectiveSpec, records: Iterable[Record]
) -> dict[str, Any]:
    """Return the findings as plain JSON values; `nearest_miss` is null where there is a best.

    Whether the best is one is said by the ranking that a sweep uses, over all records: `separated` from all
    others, or one of those that are `indistinguishable`.
    """
    summaries = summarize(records)
    final, ranking = outcome.final, rank(summaries, objective)
    best, other = final.best, final.runner_up
    return {
        "schema_version": 1,
        "study": outcome.study,
        "stopped": outcome.stopped,
        "best": best.trial_id if best else None,
        "runner_up": other.trial_id if other else None,
        "lead": final.lead,
        "clear": final.clear,
        "separated": best is not None and ranking.best == best.trial_id,
        "indistinguishable": list(ranking.indistinguishable),
        "pareto": outcome.front,
        "importance": outcome.importance,
        "hopeless": [{"point": json.loads(key), "reason": why} for key, why in outcome.predicted_oom.items()],
        "elsewhere": [str(path) for path in outcome.elsewhere],
        "nearest_miss": None if best else nearest_miss(summaries, objective),
    }


def nearest_miss(summaries: Iterable[ConfigSummary], objective: ObjectiveSpec) -> dict[str, Any] | None:
    """Return the configuration that is nearest to being feasible and correct, and what keeps it from that."""
    scorer = Scorer(objective)
    tried = [summary for summary in summaries if summary.outcome != "invalid"]
    if not tried:
        return None
    nearest = min(tried, key=lambda summary: scorer.score(summary.records).miss)
    return {"trial_id": nearest.trial_id, "axes": nearest.axes, "obstacles": obstacles(nearest, objective)}
