"""The flags of `tune` as settings of the sweep, with what is wrong about them said before anything runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.cli import sweeping
from zbench.cli.conclusion import Request
from zbench.cli.options import memory_size
from zbench.errors import UsageError
from zbench.spec.document import read_document
from zbench.spec.metrics import METRICS

if TYPE_CHECKING:
    from zbench.launch.slurm_jobs import SlurmOptions

_UNLIMITED_TRIALS = 1_000_000


def search_settings(
    *,
    objective: Sequence[str],
    budget: str | None,
    memory: str | None,
    warm_start: Sequence[Path],
    run_implied: bool,
) -> list[str]:
    """Return the flags of a search as `--set` texts; UsageError where one makes no sense."""
    from zbench.tune.stop import parse_budget

    found: list[str] = []
    goals = [_goal(text) for text in objective]
    if goals:
        for direction in ("maximize", "minimize"):
            names = [metric for way, metric in goals if way == direction]
            found.append(f"objective.{direction}={json.dumps(names)}")
    if budget is not None:
        trials, seconds = parse_budget(budget)
        found.append(f"search.trials={trials or _UNLIMITED_TRIALS}")
        found += [f"search.budget={seconds}"] if seconds is not None else []
    if memory is not None:
        found.append(f'objective.subject_to.peak_device_bytes="<= {memory_size("--memory", memory)}"')
    if warm_start:
        found.append(f"search.warm_start={json.dumps([str(path.absolute()) for path in warm_start])}")
    return [*found, *(["search.imply_oom=false"] if run_implied else [])]


def slurm_options(texts: Sequence[str]) -> "SlurmOptions | None":
    """Return how jobs are submitted, None where trials run on this machine."""
    if not texts:
        return None
    from zbench.launch.slurm_jobs import SlurmOptions

    return SlurmOptions.parse(texts)


def request_for(
    file: Path | None, resume: str | None, output_dir: Path, settings: Sequence[str], method: str | None
) -> Request:
    """Return the request to search a file's space; a file that says `grid` or nothing is searched by TPE."""
    if resume is not None:
        return sweeping.resumed(resume, output_dir, file, settings)
    assert file is not None
    data = read_document(file).data
    known = data if isinstance(data, dict) else {}
    default = [] if "objective" in known else ["objective.maximize=[tokens_per_s]"]
    chosen = method or _method_in(known)
    return sweeping.from_file(file, output_dir, [*default, *settings, f"search.method={chosen}"])


def _goal(text: str) -> tuple[str, str]:
    way, sign, metric = text.partition(":")
    if not sign or way not in ("maximize", "minimize"):
        name = text if text in METRICS else "METRIC"
        raise UsageError(
            f"--objective {text!r} has no direction: expected maximize:{name} or minimize:{name}"
        )
    return way, metric


def _method_in(data: dict[str, Any]) -> str:
    """Return the search method that a file names, TPE where it names none or the whole grid."""
    search = data.get("search")
    method = search.get("method") if isinstance(search, dict) else None
    return method if isinstance(method, str) and method not in ("grid", "covering") else "tpe"
