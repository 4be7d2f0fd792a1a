"""Memory over one step, as a stacked area by category. matplotlib draws it; no torch here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.estimate.result import Estimate

_FORMATS = (".svg", ".png")
_ORDER = (
    "parameters", "master", "moments", "gradients", "buckets", "speculative", "activations", "temporaries"
)  # fmt: skip
_GIB = 1 << 30
_APART = 0.06  # of the axis; nearer phases have one name, the first


def draw(path: Path, estimates: Sequence[tuple[str, Estimate]]) -> None:
    """Write one picture of all `estimates`, (title, estimate), below one another, with one scale of bytes."""
    check(path)
    if not estimates:
        raise UsageError(
            f"--plot {path}: no configuration could be simulated; see the reasons without --plot"
        )
    figure = _figure(estimates)
    try:
        figure.savefig(path, format=path.suffix[1:])
    except OSError as error:
        raise UsageError(f"--plot {path}: cannot be written ({error.strerror}); name another place") from None


def check(path: Path) -> None:
    """Raise UsageError for a file that cannot be the picture's."""
    if path.suffix not in _FORMATS:
        raise UsageError(f"--plot {path}: expected a file that ends in {' or '.join(_FORMATS)}")
    if path.exists():
        raise UsageError(f"--plot {path}: it exists already; name another file or remove it")


def _figure(estimates: Sequence[tuple[str, Estimate]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.5 * len(estimates)), layout="constrained")
    for axes, (title, estimate) in zip(
        figure.subplots(len(estimates), squeeze=False, sharey=True)[:, 0], estimates, strict=True
    ):
        _draw_step(axes, title, estimate)
    return figure


def _draw_step(axes: Any, title: str, estimate: Estimate) -> None:
    moments = list(range(len(estimate.timeline)))
    names = [name for name in _ORDER if any(name in held for _, held in estimate.timeline)]
    rows = [[held.get(name, 0) / _GIB for _, held in estimate.timeline] for name in names]
    if rows:
        axes.stackplot(moments, rows, labels=names)
        axes.legend(loc="upper left", fontsize="small")
    named = -len(moments)
    for k in moments[1:]:
        phase = estimate.timeline[k][0]
        if phase != estimate.timeline[k - 1][0]:
            axes.axvline(k, color="black", linewidth=0.5, alpha=0.5)
            if k - named > _APART * len(moments):  # names would lie upon one another
                axes.text(k, axes.get_ylim()[1], f" {phase}", va="top", fontsize="small")
                named = k
    axes.set_title(title, fontsize="small")
    axes.set_ylabel("GiB on the device")
    axes.set_xlabel("allocations and releases, in order")
