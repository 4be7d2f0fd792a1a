"""`zbench bench`: the kernels alone, beside their peers and the memory bound."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from zbench import __version__
from zbench.bench import adam_report
from zbench.cli import console
from zbench.cli.options import common_flags
from zbench.errors import UsageError
from zbench.record.environment import machine_facts
from zbench.units import parse_count

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

SIZES = "1k,10k,100k,1M,10M,32M,200M"
PROGRESS = "zbench-bench: "
# The child may be another interpreter: it finds the package and the compiled module where this one has them,
# and imports the kernels without the engine around them, whose dependencies it may not have.
_CHILD = """
import sys, types, zbench
zbench.__path__.append(sys.argv[1])
engine = types.ModuleType("zbench.engine")
engine.__path__ = [zbench.__path__[0] + "/engine"]
sys.modules["zbench.engine"] = engine
from zbench.bench.adam import main
main(sys.argv[2], sys.argv[3])
"""


@app.callback()
def _group() -> None:
    """Measure the kernels alone."""


@app.command()
@common_flags()
def adam(
    sizes: Annotated[str, typer.Option(help="Parameters, such as 1k,1M,32M.")] = SIZES,
    threads: Annotated[str, typer.Option(help="Thread counts, such as 1,2. [default: 1 and all]")] = "",
    rounds: Annotated[int, typer.Option(min=3, help="Turns that each contender takes.")] = 31,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    huge_pages: Annotated[
        bool, typer.Option("--huge-pages", help="Ask for huge pages for every contender's memory.")
    ] = False,
    deepspeed_python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="An interpreter that has DeepSpeed and the same torch: it joins in."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write FILE.json and FILE.md, such as results/benchmarks/adam."),
    ] = None,
) -> None:
    """Time the Adam update: zbench, torch fused and foreach, DeepSpeed, and the memory bound, in turns."""
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device: expected cpu or cuda, got {device}")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out: there is no folder {out.parent}; make it or name another")
    counts = _counts("--sizes", sizes)
    options = {
        "sizes": counts,
        "threads": _threads(threads, device),
        "rounds": rounds,
        "deepspeed": deepspeed_python is not None,
        "device": device,
        "many": 2_000 if max(counts) >= 1_000_000 else 0,
    }
    if deepspeed_python is None and device == "cpu":
        console.note("DeepSpeed is left out; --deepspeed-python names an interpreter that has it.")
    document = run_child(deepspeed_python or Path(sys.executable), options, huge_pages=huge_pages)
    document["machine"] = machine_facts()
    document["versions"]["zbench"] = __version__
    document["bars"] = adam_report.judge(document)
    if out is not None:
        out.with_suffix(".json").write_text(json.dumps(document) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(adam_report.markdown(document), encoding="utf-8")
    if console.state.json:
        console.document(document)
    else:
        _print(document)


def _threads(text: str, device: str) -> list[int]:
    if device == "cuda":
        if text:
            raise UsageError("--threads: a CUDA device has none to choose; leave the flag out")
        return [0]
    usable = len(os.sched_getaffinity(0))
    counts = _counts("--threads", text) if text else sorted({1, usable})
    if max(counts) > usable:
        raise UsageError(f"--threads: this process may use {usable}, got {max(counts)}")
    return counts


def _counts(flag: str, text: str) -> list[int]:
    try:
        counts = [parse_count(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
    if min(counts) < 1:
        raise UsageError(f"{flag}: expected numbers of at least 1, got {text}")
    return counts


def run_child(python: Path, options: dict[str, Any], *, huge_pages: bool = False) -> dict[str, Any]:
    """Measure in a child process of that interpreter; UsageError with its last words if it fails."""
    native = importlib.util.find_spec("zbench._native")
    package = importlib.util.find_spec("zbench")
    if native is None or native.origin is None or package is None or package.origin is None:
        raise UsageError("zbench bench: the native module is not built; install zbench with pip")
    root = str(Path(package.origin).parents[1])
    environment = {"DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1"} | os.environ | {"PYTHONPATH": root}
    if huge_pages:
        environment["THP_MEM_ALLOC_ENABLE"] = "1"  # torch then advises the kernel for each large tensor
    with tempfile.TemporaryDirectory() as folder:
        answer, errors = Path(folder, "answer.json"), Path(folder, "errors")
        child = [str(python), "-c", _CHILD, str(Path(native.origin).parent), json.dumps(options), str(answer)]
        status = _follow(child, environment, errors)
        if status != 0:
            last = (errors.read_text(errors="replace").strip().splitlines() or [f"exit status {status}"])[-1]
            raise UsageError(f"zbench bench: {python} failed: {last}")
        return dict(json.loads(answer.read_text(encoding="utf-8")))


def _follow(command: list[str], environment: dict[str, str], errors: Path) -> int:
    """Run the command, tell its progress, return its exit status; it ends when this process does."""
    with errors.open("w") as file:
        try:
            child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True)
        except OSError as error:
            raise UsageError(f"--deepspeed-python: cannot run {command[0]}: {error.strerror}") from None
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith(PROGRESS):
                    console.note(line.removeprefix(PROGRESS).rstrip())
            return child.wait()
        finally:
            child.kill()
            child.wait()


def _print(document: dict[str, Any]) -> None:
    from rich.table import Table

    versions = document["versions"]
    title = f"Adam on {document['device']}, torch {versions['torch']}, {document['isa']}"
    bars = Table(title="Ratios of medians against what was asked")
    view = Table(title=f"{title}: medians of turns")
    for grid, columns, body in (
        (view, adam_report.ROW_COLUMNS, adam_report.rows(document)),
        (bars, adam_report.BAR_COLUMNS, adam_report.bar_rows(document)),
    ):
        for column in columns:
            words = column in ("table", "contender", "zbench against", "best of them")
            grid.add_column(column, justify="left" if words else "right")
        for row in body:
            grid.add_row(*row)
        console.rich_console().print(grid)
