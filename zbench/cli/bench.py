"""`zbench bench`: the kernels alone, beside their peers and the memory bound."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from zbench.cli import console
from zbench.cli.options import Json, NoColor, Quiet, Verbose
from zbench.errors import UsageError
from zbench.units import format_seconds, parse_count

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)

# The child may be another interpreter: it finds the package and the compiled module where this one has them,
# and imports the kernels without the engine around them, whose dependencies it may not have.
_CHILD = """
import sys, types, zbench
zbench.__path__.append(sys.argv[1])
engine = types.ModuleType("zbench.engine")
engine.__path__ = [zbench.__path__[0] + "/engine"]
sys.modules["zbench.engine"] = engine
from zbench.bench.adam import main
main(sys.argv[2])
"""


@app.callback()
def _group() -> None:
    """Measure the kernels alone."""


@app.command()
def adam(
    sizes: Annotated[str, typer.Option(help="Parameters, such as 1k,1M,32M.")] = "1k,100k,1M,32M",
    threads: Annotated[str, typer.Option(help="Thread counts, such as 1,2. [default: 1 and all]")] = "",
    rounds: Annotated[int, typer.Option(min=3, help="Turns that each contender takes.")] = 9,
    deepspeed_python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="An interpreter that has DeepSpeed and the same torch: it joins in."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Time the Adam update: zbench, torch fused and foreach, DeepSpeed, and the memory bound, in turns."""
    options = {
        "sizes": _counts("--sizes", sizes),
        "threads": _counts("--threads", threads) if threads else sorted({1, os.cpu_count() or 1}),
        "rounds": rounds,
        "deepspeed": deepspeed_python is not None,
    }
    if deepspeed_python is None:
        console.note("DeepSpeed is left out; --deepspeed-python names an interpreter that has it.")
    document = _run_child(deepspeed_python or Path(sys.executable), options)
    if as_json:
        console.document(document)
    else:
        _print(document)


def _counts(flag: str, text: str) -> list[int]:
    try:
        counts = [parse_count(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None
    if min(counts) < 1:
        raise UsageError(f"{flag}: expected numbers of at least 1, got {text}")
    return counts


def _run_child(python: Path, options: dict[str, Any]) -> dict[str, Any]:
    native = importlib.util.find_spec("zbench._native")
    package = importlib.util.find_spec("zbench")
    if native is None or native.origin is None or package is None or package.origin is None:
        raise UsageError("zbench bench: the native module is not built; install zbench with pip")
    root = str(Path(package.origin).parents[1])
    command = [str(python), "-c", _CHILD, str(Path(native.origin).parent), json.dumps(options)]
    environment = {"DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1"} | os.environ | {"PYTHONPATH": root}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--deepspeed-python: cannot run {python}: {error.strerror}") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UsageError(f"zbench bench: {python} failed: {last}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _print(document: dict[str, Any]) -> None:
    from rich.table import Table

    view = Table(
        title=f"Adam, torch {document['torch']}, {document['isa']}: median of {document['rounds']} turns"
    )
    for column in ("table", "parameters", "threads", "contender", "median", "over zbench"):
        view.add_column(column, justify="left" if column in ("table", "contender") else "right")
    for part in document["tables"]:
        for name, seconds in part["median_seconds"].items():
            ratio = part["zbench_speedup"].get(name)
            view.add_row(
                part["table"],
                f"{part['numel']:,}",
                str(part["threads"]),
                name,
                format_seconds(seconds),
                "" if ratio is None else f"{ratio:.3f}",
            )
    console.rich_console().print(view)
