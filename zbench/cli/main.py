"""The `zbench` command: a table of commands, each imported only when it is called.

The convention for a command module: `zbench/cli/<name>.py` defines a function `command` with Typer
annotations (its docstring is the help text, its option types come from `zbench.cli.options`). A command
prints its result with `zbench.cli.console` (stdout: the result only; stderr: progress and warnings). It
raises `zbench.errors.ZbenchError` for a mistake that the user can mend, and ends with another status than 0
by `raise typer.Exit(ExitCode...)`. Errors are shown once, for all commands, by `failure`: with `--json` as a
document on stdout too.
"""

import gc
import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from zbench import __version__, masking
from zbench.cli import console, failure, streams
from zbench.cli.examples import epilog
from zbench.cli.options import common_flags
from zbench.errors import EXIT_CODES
from zbench.scratch import remove_abandoned

COMMANDS = {
    "sweep": "Run every configuration of a sweep file and judge each one.",
    "run": "Run one configuration.",
    "plan": "Print the trials of a sweep file without running them.",
    "estimate": "Estimate memory and traffic at any world size, without an accelerator.",
    "tune": "Search for the best configuration that fits and is correct.",
    "init": "Write a first sweep file, from your own configuration or model.",
    "worker": "Run trials of a shared search on this host.",
    "show": "Show the results of one run.",
    "list": "List the runs in a results directory.",
    "compare": "Compare two runs, with statistics.",
    "tag": "Give a run a name.",
    "bisect": "Find the first commit that is slower, larger or incorrect.",
    "history": "Show how each configuration changed over all runs.",
    "report": "Write a report of a run.",
    "publish": "Write a static site of all runs.",
    "export": "Write a trial's configuration for another training stack.",
    "check": "Verify that the files of a run, a baseline or a site are whole.",
    "doctor": "Check what this machine can run, and say what is missing.",
    "prune": "Remove files that zbench can create again.",
    "schema": "Print the JSON Schema of the sweep file.",
}
_WITHOUT_DOCUMENT = {"export", "schema"}


def load_command(name: str) -> Any:
    """Import the module of one command and return it as a click command, with the common flags."""
    command = _click_command(importlib.import_module(f"zbench.cli.{name}").command, name)
    flags = _click_command(common_flags, name).params
    command.params += [flag for flag in flags if flag.name != "json" or name not in _WITHOUT_DOCUMENT]
    command.epilog = epilog(name)
    every = command.get_params
    command.get_params = lambda context: _plain_flags(every(context))
    return command


def _click_command(function: Callable[..., None], name: str) -> Any:
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(function)
    command: Any = typer.main.get_command(app)
    command.name = name
    return command


def _plain_flags(params: list[Any]) -> list[Any]:
    """Leave the type of flags out of a command's help: `--json`, not `--json <bool>`."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class LazyGroup(TyperGroup):
    """A group whose help lists one-line stand-ins; the real command takes its place when called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=text) for name, text in COMMANDS.items()}

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of `zbench` itself."""
        return _plain_flags(super().get_params(ctx))

    def main(self, args: Any = None, prog_name: str | None = None, *rest: Any, **more: Any) -> Any:
        """Run a command; every exception goes through to `failure`, which knows how commands end."""
        if f"_{prog_name}_COMPLETE".upper() in os.environ:
            return super().main(args, prog_name, *rest, **more)
        with self.make_context(prog_name, list(args)) as context:
            return self.invoke(context)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Return the named command, imported now; usage error with the nearest name for an unknown one."""
        if "--ray" in args:  # alone, too, for which Typer has no way
            after = args.index("--ray") + 1
            if not re.fullmatch(r"auto|[^:/]+:\d+|\[.*\]:\d+", "".join(args[after : after + 1])):
                args = [*args[:after], "auto", *args[after:]]
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = self.commands[name] = load_command(name)
        return name, command, rest


def _show_version(value: bool) -> None:
    if value:
        print(f"zbench {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    name="zbench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\n".join(
        ["[bold]Exit codes[/bold]", *(f"{code:3}  {text}" for code, text in EXIT_CODES.items())]
    ),
)


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Find the ZeRO configuration that is fastest, fits memory, and computes the same training step."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its documented status."""
    args = sys.argv[1:] if arguments is None else arguments
    console.reset()
    masking.forget()
    gc.set_threshold(20_000, 20)  # records are many objects and no cycles: reading 10,000 takes a fifth less
    shown = failure.shown_to_the_user(args)
    with (
        failure.as_interruption(),
        streams.guarded(),
        shown,
        failure.with_room_for_blas(),
        console.skipped_records(),
    ):
        streams.require_stdout()
        remove_abandoned()
        try:
            app(args=args, prog_name="zbench")
        except typer.Exit:
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    sys.exit(0)


if __name__ == "__main__":
    main()
