"""Measure the tests of one room by mutation: what share of seeded faults do they notice?

    python tools/mutate.py verify spec --mutants 200 [--seed 0] [--tests tests/verify]
                           [--json FILE] [--minutes 12]

A fault changes one comparison, arithmetic operator, boolean or constant of one source file. Each is judged by
the tests of its own room only (`tests/ROOM`, or the paths after `--tests`), stopped at the first failure. One
warm process per room imports what its tests import, but for the project's own modules, then forks a child per
fault, so a fault costs the import of the room's modules and its tests. Processes that tests start get the
fault, too. Test files that name the mutated module run first.

Exit code 1 if less than `--at-least` of the faults were noticed; 3 if `--minutes` were over first: the same
command goes on from `--json`. Faults that change no behaviour are listed, with the reason, in
tools/equivalent_mutants.txt as `PATH:SOURCE LINE -> CHANGE  # why`, and not counted.
"""

import argparse
import contextlib
import importlib
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants import ROOT, Mutant, install, mutants_of

EQUIVALENT = ROOT / "tools" / "equivalent_mutants.txt"
HOOK = ROOT / "tools" / "mutation_hook"  # its sitecustomize gives a test's own processes the fault, too
VARIABLE = "ZBENCH_MUTANT"
NOTICED, SURVIVED, TIMEOUT = "noticed", "survived", "timeout"


def judge(mutant: Mutant | None, tests: Sequence[str], timeout: float, imported: Path | None = None) -> str:
    """Return whether the tests notice a fault (or fail without one): run them in a fork of this process.

    imported: file for the names of the modules that they imported.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        _silence()
        os.environ[VARIABLE] = f"{mutant.path}:{mutant.index}" if mutant else ""
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")])
        status = _run_tests(mutant, tests)
        if imported is not None:
            others = [name for name, it in list(sys.modules.items()) if not _own(name, it)]
            imported.write_text("\n".join(others))
        os._exit(status)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return SURVIVED if os.waitstatus_to_exitcode(status) == 0 else NOTICED
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMEOUT


def _own(name: str, module: object) -> bool:
    """Say whether a module is the project's: a child has to import those itself."""
    file = getattr(module, "__file__", None)
    is_ours = name.split(".")[0] in ("zbench", "tests", "conftest")
    return is_ours or file is None or Path(file).is_relative_to(ROOT / "tests")


def warm_up(tests: Sequence[str], timeout: float) -> bool:
    """Say whether the tests pass without a fault; import here what they imported of others."""
    with tempfile.TemporaryDirectory() as folder:
        imported = Path(folder) / "imported"
        if judge(None, tests, timeout, imported) != SURVIVED:
            return False
        for name in imported.read_text().splitlines():
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    return True


def _silence() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def _run_tests(mutant: Mutant | None, tests: Sequence[str]) -> int:
    import pytest

    if mutant is not None:
        install(mutant.path, mutant.index)
    off = [word for name in ("cacheprovider", "randomly", "xdist") for word in ("-p", f"no:{name}")]
    plain = ["-x", "-q", *off, "--no-header", "--tb=no"]
    return int(pytest.main([*plain, *tests]))


def ordered(tests: Sequence[str], mutant: Mutant) -> list[str]:
    """Return test files, those that import the mutated module before all others."""
    module = mutant.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    files: list[Path] = []
    for test in tests:
        place = ROOT / test
        files += sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
    return sorted((str(f) for f in files), key=lambda f: module not in Path(f).read_text())


def sources(room: str) -> list[Path]:
    """Return the files of a room, or the one file that is named."""
    place = ROOT / "zbench" / room
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def equivalent() -> set[str]:
    """Return the keys of faults that are known to change no behaviour."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return {line.split("  #")[0].strip() for line in lines if line and not line.startswith("#")}


@dataclass
class Measurement:
    """The sample of one room, and what became of each of its faults so far, kept in a file."""

    room: str
    sample: list[Mutant]
    outcomes: dict[str, str]
    file: Path | None

    @classmethod
    def begin(cls, room: str, count: int, seed: int, file: Path | None) -> "Measurement":
        """Draw the sample; take over what an earlier run found of it."""
        known, everything = equivalent(), [m for path in sources(room) for m in mutants_of(path)]
        candidates = [m for m in everything if m.key not in known]
        sample = random.Random(f"{room}/{seed}").sample(candidates, min(count, len(candidates)))
        earlier = json.loads(file.read_text()) if file is not None and file.exists() else {}
        return cls(room, sample, dict(earlier.get(room, {})), file)

    def found(self, outcome: str) -> list[Mutant]:
        """Return the faults of the sample with this outcome."""
        return [m for m in self.sample if self.outcomes.get(_place(m)) == outcome]

    def run(self, tests: Sequence[str], timeout: float, end: float) -> bool:
        """Judge what is not judged yet; return whether all is, at `end` (time.monotonic) at the latest."""
        left = [m for m in self.sample if _place(m) not in self.outcomes]
        if left and not warm_up(tests, 10 * timeout):
            sys.exit(f"{self.room}: {' '.join(tests)} fail without a fault; mend them first")
        for number, mutant in enumerate(left, 1):
            if time.monotonic() > end:
                return False
            outcome = judge(mutant, ordered(tests, mutant), timeout)
            self.outcomes[_place(mutant)] = outcome
            self._save()
            if outcome != NOTICED:
                print(f"{outcome}: {mutant.path}:{mutant.number}: {mutant.change}: {mutant.line}", flush=True)
            print(f"{self.room}: {number}/{len(left)}", end="\r", file=sys.stderr, flush=True)
        return True

    def _save(self) -> None:
        if self.file is not None:
            earlier = json.loads(self.file.read_text()) if self.file.exists() else {}
            self.file.write_text(json.dumps(earlier | {self.room: self.outcomes}, indent=1) + "\n")


def _place(mutant: Mutant) -> str:
    """Return what names a fault in the file of outcomes; other code there makes another fault."""
    return f"{mutant.key} #{mutant.index}"


def main() -> int:
    """Measure the rooms that are named, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rooms", nargs="+", help="a folder of zbench/, or a file: spec, verify/verdict.py")
    parser.add_argument("--tests", nargs="+", help="tests that judge; default: tests/ROOM")
    parser.add_argument("--mutants", type=int, default=200, help="faults in the sample of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for one fault; a hang is noticed"
    )
    parser.add_argument("--at-least", type=float, default=0.92, help="share that must be noticed")
    parser.add_argument("--json", type=Path, help="file of outcomes, from which a later run goes on")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no fault after these")
    given = parser.parse_args()
    sys.path[:0] = [str(ROOT)]
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import hypothesis  # noqa: F401
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    total = caught = 0
    end = time.monotonic() + 60 * given.minutes
    for room in given.rooms:
        tests = given.tests or [f"tests/{room.split('/')[0]}"]
        measured = Measurement.begin(room, given.mutants, given.seed, given.json)
        is_whole = measured.run(tests, given.timeout, end)
        hung = len(measured.found(TIMEOUT))
        seen, missed = len(measured.found(NOTICED)) + hung, len(measured.found(SURVIVED))
        print(f"{room}: {seen} of {seen + missed} noticed, {hung} of them by hanging")
        if not is_whole:
            return 3
        total, caught = total + seen + missed, caught + seen
    return 0 if caught >= given.at_least * total else 1


if __name__ == "__main__":
    sys.exit(main())
