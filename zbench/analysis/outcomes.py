"""Whether head's repeats fail more often than base's: an exact test on outcomes. Pure."""

from zbench.record.summary import ConfigSummary


def fails_more(base: ConfigSummary, head: ConfigSummary, alpha: float) -> bool:
    """Say whether head fails where base did not, fails always, or fails more often at level `alpha`.

    A failure that base never had, or a head without a single finished repeat, needs no test. Where both
    fail now and then, it is Fisher's exact test, one-sided (`scipy.stats.fisher_exact`).
    """
    if head.outcome in ("ok", "invalid") or not base.ok:
        return False
    if base.outcome == "ok" or not head.ok:
        return True
    from scipy.stats import fisher_exact  # slow to import, and hardly ever needed

    sides = [(len(trial.records) - len(trial.ok), len(trial.ok)) for trial in (head, base)]
    return bool(fisher_exact(sides, alternative="greater").pvalue <= alpha)
