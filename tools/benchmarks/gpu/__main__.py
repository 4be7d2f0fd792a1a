"""Runs the parts of `tools.gpu` that have not passed yet; prints what passed, failed and is missing.

    python -m tools.gpu                                 # installs, and calls this program
    python -m tools.benchmarks.gpu --only adam decoder  # some parts
    python -m tools.benchmarks.gpu --device cpu --tiny  # try every part where there is no card; no figures

A part's result is written when it ends, so that an interrupted run goes on where it was. After --minutes, the
installation by `tools.gpu` included, nothing runs any more: parts that were cut or not begun are missing, and
the next call goes on with them. Exit codes: 0 all passed, 1 something failed or is missing, 2 no CUDA device.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tools.benchmarks.gpu.outcome import PartOutcome, Place, folder_name, page, summary
from tools.benchmarks.gpu.parts import PARTS, ROOT, Part

MINUTES = 25.0
_EXTENSIONS = ROOT / "build" / "gpu_extensions"  # what DeepSpeed compiles when it is first used
_TO_END = 15.0  # seconds in which the last part's processes end, and the page is written
NO_DEVICE = (
    "tools.gpu: no CUDA device: {why}; run it on a machine with one, or try the parts with"
    " --device cpu --tiny --out DIR"
)


def main() -> int:
    """Run what is asked for; return the exit code."""
    given = _arguments()
    import torch  # takes seconds, which a mistake in the arguments does not

    from zbench.engine.adam import cuda_unavailable_reason

    if given.device == "cuda" and not torch.cuda.is_available():
        why = "this torch was built without CUDA" if torch.version.cuda is None else "torch finds none"
        print(NO_DEVICE.format(why=f"torch {torch.__version__}: {why}"), file=sys.stderr)
        return 2
    if given.device == "cuda" and (reason := cuda_unavailable_reason()) is not None:
        print(f"tools.gpu: {reason}; nothing but torch's own kernels would be measured", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    out = given.out or ROOT / "results" / "benchmarks" / "gpu" / folder_name(name)
    place = Place(given.device, given.tiny, out.resolve(), given.deepspeed_python)
    place.out.mkdir(parents=True, exist_ok=True)
    if given.part:
        (part,) = (part for part in PARTS if part.name == given.part)
        part.run(place).save(_file(part, place))
        return 0
    parts = [part for part in PARTS if part.name in given.only]

    def write_page() -> None:
        text = page(name, {part.name: _known(part, place) for part in PARTS})
        (place.out / "README.md").write_text(text, encoding="utf-8")

    outcomes = _run_all(parts, place, given.minutes, given.since, write_page)
    print(summary(outcomes))
    return int(any(outcome.status != "passed" for outcome in outcomes.values()))


def _run_all(
    parts: list[Part],
    place: Place,
    minutes: float,
    since: float,
    ended: Callable[[], None] = lambda: None,
) -> dict[str, PartOutcome]:
    """Run what has not passed; `ended` is called after each part."""
    deadline = time.monotonic() + 60 * minutes - _TO_END - max(0.0, time.time() - since)
    for lock in _EXTENSIONS.glob("*/lock"):  # of a compiler that was ended: torch would wait for it for ever
        lock.unlink()
    found: dict[str, PartOutcome] = {}
    for part in parts:
        known = _known(part, place)
        left = deadline - time.monotonic()
        if known.status == "passed":
            found[part.name] = known
        elif left < min(30, part.seconds):
            found[part.name] = PartOutcome("missing", f"the {minutes:g} minutes were over: run it again")
        else:
            print(f"{part.name}: {part.shows}", file=sys.stderr, flush=True)
            seconds = part.seconds * (3 if place.tiny else 1)  # shared cores are slower
            found[part.name] = run_apart(part, place, min(left, seconds))
        ended()
    return found


def run_apart(part: Part, place: Place, seconds: float) -> PartOutcome:
    """Run a part in a process of its own, so that no part's crash is another's; keep its result."""
    command = [sys.executable, "-m", "tools.benchmarks.gpu", "--part", part.name, "--out", str(place.out)]
    command += ["--device", place.device, *(["--tiny"] if place.tiny else [])]
    if place.deepspeed_python:
        command += ["--deepspeed-python", place.deepspeed_python]
    begin = time.monotonic()
    _file(part, place).unlink(missing_ok=True)
    log = place.out / f"{part.name}.log"
    with log.open("w") as stream:
        child = subprocess.Popen(
            command,
            stdout=stream,
            stderr=stream,
            cwd=ROOT,
            env={"TORCH_EXTENSIONS_DIR": str(_EXTENSIONS), **os.environ},
            start_new_session=True,
        )
        try:
            ended: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = None
        finally:
            _end(child)
    outcome = _known(part, place)
    if not _file(part, place).exists():
        last = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        outcome = PartOutcome("failed", f"it ended with {ended}: {last[:200]}")
        if ended is None:
            outcome = PartOutcome("missing", f"it was ended after {seconds:.0f} s: run it again")
    outcome = replace(outcome, seconds=round(time.monotonic() - begin, 1))
    outcome.save(_file(part, place))
    return outcome


def _known(part: Part, place: Place) -> PartOutcome:
    """Return what a part has left here, or that it has not been run."""
    try:
        return PartOutcome.load(_file(part, place))
    except (OSError, ValueError, TypeError, KeyError):
        return PartOutcome("missing", "not run yet")


def _file(part: Part, place: Place) -> Path:
    return place.out / f"{part.name}.json"


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a part's process and those that it has started; a sweep ends its own ranks in the meantime."""
    give_up = time.monotonic() + _TO_END - 5
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        while time.monotonic() < give_up:
            child.poll()  # its entry goes, and with the last one the group
            os.killpg(child.pid, 0)
            time.sleep(0.05)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes, which show nothing")
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="parts to run [all]")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="end after so long [25]")
    parser.add_argument("--since", type=float, default=time.time(), help=argparse.SUPPRESS)  # of tools.gpu
    parser.add_argument("--deepspeed-python", help="an interpreter that has DeepSpeed and zbench")
    parser.add_argument("--out", type=Path, help="folder of the results [results/benchmarks/gpu/DEVICE]")
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == "cpu" and not (given.tiny and given.out):
        parser.error("--device cpu only tries the parts: give --tiny and --out DIR as well")
    return given


if __name__ == "__main__":
    sys.exit(main())
