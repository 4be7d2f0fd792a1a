"""The configurations of the throughput and memory chart, and which of them no other beats in both."""

from collections.abc import Sequence
from dataclasses import dataclass

from zbench.analysis.ranking import pareto_front


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration: its label, peak memory in bytes, tokens per second and verdict.

    obstacles: why it cannot be the best, empty where it is correct and within the constraints. hover: what is
    shown when the pointer is on it.
    """

    label: str
    peak_bytes: float
    tokens_per_s: float
    verdict: str
    obstacles: tuple[str, ...] = ()
    hover: str = ""


def fastest(points: Sequence[Point]) -> Point | None:
    """Return the fastest configuration that is correct and within the constraints."""
    able = [point for point in points if not point.obstacles]
    return max(able, key=lambda point: point.tokens_per_s, default=None)


def front_of(points: Sequence[Point]) -> list[Point]:
    """Return the feasible configurations that none beats in throughput and memory, the smallest first."""
    able = {i: point for i, point in enumerate(points) if not point.obstacles}
    values = {i: (point.tokens_per_s, point.peak_bytes) for i, point in able.items()}
    found = [able[i] for i in pareto_front(values, ("maximize", "minimize"))]
    unique = {(point.peak_bytes, point.tokens_per_s): point for point in reversed(found)}
    return sorted(unique.values(), key=lambda point: (point.peak_bytes, point.tokens_per_s))
