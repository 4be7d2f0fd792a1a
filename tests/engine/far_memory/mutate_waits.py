"""Removes each wait of the engine in turn and runs the far-memory schedules that reach it: one must fail.

    python -m tests.engine.far_memory.mutate_waits                # every wait without a known result
    python -m tests.engine.far_memory.mutate_waits masters kinds  # in files whose path has one of the words
    python -m tests.engine.far_memory.mutate_waits --afresh       # also those with a known result
    python -m tests.engine.far_memory.mutate_waits --minutes 10   # stop then; the next call goes on

Results are in `results/benchmarks/waits.json`, one for each wait, and on the page `waits.md` beside it. A
result holds until the file that has the wait changes. `waits.py` lists every wait; one that no schedule
misses needs a reason there, and is else `survived`: the exit code is 1 then, and 3 where the time was over.

The working tree is not touched: the functions of a fork of this process get other code.
"""

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.engine.far_memory.lattice import CHOSEN, ROWS
from tests.engine.far_memory.wait_sites import ENGINE, ROOT, Site, sites
from tests.engine.far_memory.waits import REASONS

PAGE = ROOT / "results" / "benchmarks" / "waits.md"
REACHED = ROOT / "build" / "reached_waits.json"
SO_FAR = ROOT / "build" / "waits"  # a file for each process, with what the page does not have yet
FIRST, RECORDED = -len(CHOSEN), 3 * len(ROWS)  # of these schedules it is recorded what they reach
AT_ONCE = 30
MOST, MOST_KEPT = 40, 8  # schedules that are tried for one wait; for one that has a reason
SURVIVED, UNREACHED, KEPT = "survived", "unreached", "kept"


@dataclass(frozen=True)
class Result:
    """file: digest of the file that has the wait. noticed: what failed, "" if nothing did. tried, reached:
    schedules that would be run without the wait, and that reach it.
    """

    key: str
    file: str
    noticed: str
    tried: int
    reached: int

    @property
    def verdict(self) -> str:
        """Return the wait's verdict in a word."""
        if self.noticed:
            return "caught"
        if REASONS.get(self.key):
            return KEPT
        return SURVIVED if self.reached else UNREACHED


def known() -> dict[str, Result]:
    """Return the results so far."""
    found: dict[str, Result] = {}
    latest_last = sorted(SO_FAR.glob("*.json"), key=lambda file: file.stat().st_mtime)
    for file in (PAGE.with_suffix(".json"), *latest_last):
        if file.exists():
            found |= {one["key"]: Result(**one) for one in json.loads(file.read_text())}
    return found


def publish(results: dict[str, Result]) -> None:
    """Write the results of the waits that there are, and their page."""
    there = list(sites())
    ordered = [results[site.key] for site in there if site.key in results]
    _write(PAGE.with_suffix(".json"), ordered)
    PAGE.write_text(page(ordered, [site for site in there if not _holds(results.get(site.key), site)]))


def _holds(result: Result | None, site: Site) -> bool:
    """Return whether a wait has a result, and its file is still the one that it was taken of."""
    return result is not None and result.file == _digest(site.path)


def _write(file: Path, results: Iterable[Result]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text("[\n" + ",\n".join(json.dumps(asdict(result)) for result in results) + "\n]\n")
    os.replace(draft, file)


def page(results: list[Result], outdated: list[Site]) -> str:
    """Return the results as Markdown. outdated: waits whose file has changed since, or that are new."""
    verdicts = [result.verdict for result in results]
    counts = ", ".join(f"{verdicts.count(v)} {v}" for v in sorted(set(verdicts)))
    lines = [
        "# Every wait of the engine, removed",
        "",
        "Written by `python -m tests.engine.far_memory.mutate_waits`: each wait is removed in turn, and the",
        "far-memory schedules that reach it are run until one fails ([how](../../docs/device.md)).",
        "",
        f"**{len(results)} waits: {counts}.** Kept: no schedule misses it;",
        "`tests/engine/far_memory/waits.py` says why it is there.",
        "",
        *_told(outdated),
        "| wait | verdict | schedules that reach it | what failed first, or the reason |",
        "|---|---|---|---|",
    ]
    for result in results:
        says = result.noticed or REASONS.get(result.key, "")
        name, _, text = result.key.partition(" ")
        lines.append(f"| {name} `{text}` | {result.verdict} | {result.reached} | {_cell(says)} |")
    return "\n".join(lines) + "\n"


def _told(outdated: list[Site]) -> list[str]:
    if not outdated:
        return []
    files = ", ".join(sorted({f"`{site.name}`" for site in outdated}))
    return [
        f"Not tried since their file changed, {len(outdated)} waits: run it again. They are in {files}.",
        "",
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:160]


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _reached() -> dict[str, list[int]]:
    """Return which schedules reach each wait; kept until a file of the engine or of these tests changes."""
    from tests.engine.far_memory.wait_runs import reached

    digest = _digest(*sorted(ENGINE.rglob("*.py")), Path(__file__).with_name("lattice.py"))
    try:
        kept = json.loads(REACHED.read_text())
    except (OSError, ValueError):
        kept = {}
    if kept.get("digest") != digest:
        kept = {"digest": digest, "upto": FIRST, "reached": {site.key: [] for site in sites()}}
    while kept["upto"] < RECORDED:
        begin, kept["upto"] = kept["upto"], min(kept["upto"] + AT_ONCE, RECORDED)
        print(f"schedules {begin} to {kept['upto']}, with every wait in place", flush=True)
        for key, seeds in reached(range(begin, kept["upto"])).items():
            kept["reached"][key] += seeds
        REACHED.parent.mkdir(exist_ok=True)
        REACHED.write_text(json.dumps(kept))
    return dict(kept["reached"])


def _seeds(reached: list[int], before: Result | None) -> list[int]:
    """Return the schedules to run: first what failed last time, then spread over those that reach it."""
    spread = [seed for start in range(10) for seed in reached[start::10]][:MOST]
    failed = before.noticed.removeprefix("schedule ").partition(":")[0] if before else ""
    first = [seed for seed in spread if str(seed) in failed.split("/")]
    return first + [seed for seed in spread if seed not in first]


def _try(site: Site, reached: list[int], before: Result | None) -> Result:
    from tests.engine.far_memory.wait_runs import noticed

    seeds = _seeds(reached, before)[: MOST_KEPT if REASONS.get(site.key) else MOST]
    return Result(site.key, _digest(site.path), noticed(site, seeds)[:240], len(seeds), len(reached))


def main() -> int:
    """Print a line for each wait; return 1 if one survived without a reason, 3 if the time was over."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", default=[""], help="only files whose path contains one of these")
    parser.add_argument("--afresh", action="store_true", help="also try waits with a known result")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no wait after so long")
    parser.add_argument(
        "--share", default="0/1", help="`1/3`: of the waits, those of the second of 3 processes"
    )
    options = parser.parse_args()
    from tests.engine.far_memory.wait_runs import import_engine

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the forks are ended, too
    import_engine()
    results, deadline = known(), time.monotonic() + 60 * options.minutes
    wanted = [site for site in sites() if any(word in site.name for word in options.words)]
    if not options.afresh:
        wanted = [site for site in wanted if not _holds(results.get(site.key), site)]
    reached, tried = _reached() if wanted else {}, list[Result]()
    number, of = map(int, options.share.split("/"))
    wanted = wanted[number::of]
    for done, site in enumerate(wanted):
        if time.monotonic() > deadline:
            print(f"{len(wanted) - done} waits are left: run it again")
            publish(known())
            return 3
        result = _try(site, reached[site.key], results.get(site.key))
        results[site.key] = result
        tried.append(result)
        _write(SO_FAR / f"{os.getpid()}.json", tried)
        print(f"{site.name}:{site.line}  {site.text}  {result.verdict} {_cell(result.noticed)}", flush=True)
    results = known()
    publish(results)
    open_ones = [r.key for r in results.values() if r.verdict in (SURVIVED, UNREACHED)]
    print("\n".join(["still open:", *open_ones] if open_ones else ["every wait is needed, or has a reason"]))
    return int(bool(open_ones))


if __name__ == "__main__":
    sys.exit(main())
