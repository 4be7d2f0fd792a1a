"""Write results/benchmarks/zoo.md, the table of what the zoo was trained with and how it ended.

    python -m tools.zoo_table results/zoo/RUN [RUN ...]

The trials of these runs of sweeps/zoo.yaml are added to results/zoo.json, each with its build, in place of
earlier ones of the same configuration. The table is made of all that this file holds; without a run the page
is written again.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zbench.workloads.zoo import Entry, table

ROOT = Path(__file__).resolve().parents[1]
SUMMARY = ROOT / "results" / "zoo.json"
PAGE = ROOT / "results" / "benchmarks" / "zoo.md"
STAGES = (0, 1, 2, 3)
USES: dict[str, tuple[str, Any]] = {
    "offload": ("offload_optimizer", "cpu"),
    "speculation": ("offload_schedule", "speculative"),
    "bfloat16": ("dtype", "bfloat16"),
    "checkpointing": ("options.checkpointing", True),
    "3 backwards": ("backwards_per_step", 3),
    "evaluation": ("evaluate_every", 1),
    "reduced once": ("reduce_at", "boundary"),
}
"""Column -> axis and the value that means it."""
Trial = Mapping[str, Any]
Build = Mapping[str, str]
"""What a trial ran on: `zbench` (commit), `torch` and `transformers`."""
BUILD = ("zbench", "torch", "transformers")

TEXT = """# What the zoo was trained with

[The zoo](../../docs/zoo.md) says what these trials are.

**{identical} of {count} trials were `identical`**, on CPUs. The sweep lists {listed} architectures.
{some} of them have been run so far, {stages} at every stage, and {whole} at every stage and with every
use from offload to evaluation. A mark means that a trial of this architecture had this use. "Reduced once"
({once} architectures) means three backwards whose gradients are added up before one reduction; otherwise each
backward reduces. The letter is the build that ran it:

{builds}
{others}"""


def main(runs: Sequence[str]) -> None:
    summary = json.loads(SUMMARY.read_text()) if SUMMARY.exists() else {"trials": []}
    trials = {_key(trial): trial for trial in summary["trials"]}
    trials |= {_key(trial): trial for run in runs for trial in _read(Path(run))}
    known = [trials[key] for key in sorted(trials) if trials[key]["options.architecture"] in table()]
    _write_summary(known)
    PAGE.write_text(page(known))


def page(trials: Sequence[Trial]) -> str:
    """Return the page: what was found, then a table per family."""
    rows = {entry.name: _of(trials, entry) for entry in table().values()}
    text = TEXT.format(
        identical=sum(trial["verdict"] == "identical" for trial in trials),
        count=len(trials),
        listed=len(rows),
        some=sum(bool(found) for found in rows.values()),
        stages=sum(all(_marks(found)[: len(STAGES)]) for found in rows.values()),
        whole=sum(all(_marks(found)[:-1]) for found in rows.values()),
        once=sum(_marks(found)[-1] for found in rows.values()),
        builds=_builds(trials),
        others=_others(trials),
    )
    letters = _letters(trials)
    return text + "".join(
        _family(family, rows, letters) for family in dict.fromkeys(e.family for e in table().values())
    )


def _letters(trials: Iterable[Trial]) -> dict[tuple[str, ...], str]:
    """Return each build's letter; `a` has the most trials."""
    counts = Counter(_build(trial) for trial in trials)
    return {build: chr(ord("a") + k) for k, (build, _) in enumerate(counts.most_common())}


def _build(trial: Trial) -> tuple[str, ...]:
    return tuple(trial["build"][name] for name in BUILD)


def _builds(trials: Sequence[Trial]) -> str:
    lines = [f"| build | {' | '.join(BUILD)} | trials | identical |\n", f"|{' --- |' * (len(BUILD) + 3)}\n"]
    for build, letter in _letters(trials).items():
        found = [trial for trial in trials if _build(trial) == build]
        same = sum(trial["verdict"] == "identical" for trial in found)
        lines.append(f"| {letter} | {' | '.join(build)} | {len(found)} | {same} |\n")
    return "".join(lines)


def _read(run: Path) -> Iterator[Trial]:
    environment = json.loads((run / "environment.json").read_text())
    build = {name: environment["software"][name] for name in BUILD}
    build |= {"zbench": environment["git"]["commit"][:7]} if environment["git"] else {}
    for line in (run / "trials.jsonl").read_text().splitlines():
        record = json.loads(line)
        error = record["error"]
        yield {
            **record["axes"],
            "outcome": record["outcome"],
            "verdict": record["correctness"]["verdict"],
            "error": error and error["message"],
            "build": build,
        }


def _key(trial: Trial) -> str:
    return json.dumps([trial["options.architecture"], *(trial.get(axis) for axis in _AXES)])


_AXES = ("zero_stage", *(axis for axis, _ in USES.values()))


def _write_summary(trials: Sequence[Trial]) -> None:
    lines = ",\n".join(json.dumps(trial) for trial in trials)
    SUMMARY.write_text(f'{{"trials": [\n{lines}\n]}}\n')


def _of(trials: Iterable[Trial], entry: Entry) -> list[Trial]:
    return [trial for trial in trials if trial["options.architecture"] == entry.name]


def _marks(found: Sequence[Trial]) -> list[bool]:
    stages = [any(trial["zero_stage"] == stage for trial in found) for stage in STAGES]
    return stages + [any(trial.get(axis) == value for trial in found) for axis, value in USES.values()]


def _others(trials: Iterable[Trial]) -> str:
    """Return the trials that are not identical, each with its error."""
    found = [trial for trial in trials if trial["verdict"] != "identical"]
    if not found:
        return ""
    lines = []
    for trial in found:
        uses = [name for name, (axis, value) in USES.items() if trial.get(axis) == value]
        where = ", ".join([f"stage {trial['zero_stage']}", *uses])
        lines.append(f"- {trial['options.architecture']} ({where}): {trial['error'] or trial['verdict']}\n")
    return "Not `identical`:\n\n" + "".join(lines) + "\n"


def _family(family: str, rows: Mapping[str, Sequence[Trial]], letters: Mapping[tuple[str, ...], str]) -> str:
    titles = [*(f"stage {stage}" for stage in STAGES), *USES]
    lines = [
        f"## {family.replace('_', ' ').capitalize()}\n\n",
        f"| architecture | class | trials | {' | '.join(titles)} | identical | build |\n",
        f"| --- | --- | --- |{' --- |' * (len(titles) + 2)}\n",
    ]
    notes = []
    for entry in (entry for entry in table().values() if entry.family == family):
        found = rows[entry.name]
        marks = " | ".join("x" if mark else "" for mark in _marks(found))
        same = sum(trial["verdict"] == "identical" for trial in found)
        verdict = f"{same} of {len(found)}" if found else "not run"
        builds = ", ".join(sorted({letters[_build(trial)] for trial in found}))
        cells = (entry.name, f"`{entry.model.split(':')[-1]}`", str(len(found)), marks, verdict, builds)
        lines.append(f"| {' | '.join(cells)} |\n")
        notes += [f"- {entry.name}: {entry.note}\n"] if entry.note else []
    return "".join(lines) + "\n" + "".join(notes) + ("\n" if notes else "")


if __name__ == "__main__":
    main(sys.argv[1:])
