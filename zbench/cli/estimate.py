"""`zbench estimate`: what every configuration of a sweep needs, at any world size, without an accelerator."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from zbench.app.estimate import forecast
from zbench.app.estimate_columns import DEVICE, HOST, RESERVED
from zbench.app.typed import cards_typed, token_count
from zbench.cli import console, options
from zbench.cli.estimate_table import print_assumptions, print_rows, print_simulated
from zbench.estimate.result import Capacity
from zbench.estimate.row import EstimateRow
from zbench.report.text import axes_text
from zbench.spec import LISTED
from zbench.spec.load import command_line


def command(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help=f"Sweep file, {LISTED}, or a model: hf:Llama-3-8B."),
    ] = None,
    world_size: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks to simulate. Default: the file's.")
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Say what fits in this device memory, such as 80Gi.")
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Say what fits in this memory of a node, such as 512Gi."),
    ] = None,
    limits: Annotated[
        bool,
        typer.Option(
            "--limits", help="Also find the least ranks, largest micro-batch and longest sequence that fit."
        ),
    ] = False,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Simulate this GPU, such as H100 or 8xH100, or a file of rates: also the time.",
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="N", help="Also estimate the time for N tokens, such as 15T; needs --machine."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(metavar="MONEY", min=0, help="Of a GPU for an hour: also the cost of --tokens."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Configurations to simulate at once. Default: usable cores.")
    ] = None,
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
) -> None:
    """Estimate whether each configuration fits, by running the real engine on tensors without data.

    One process without an accelerator computes one rank's peak memory by
    category, and the traffic and FLOPs of a step. With --machine it also
    estimates the time of a step, as a range, and says what fits the GPU. A
    model such as hf:Llama-3-8B is estimated at all stages in its own dtype.
    """
    sizes = {"--device-memory": device_memory, "--host-memory": host_memory}
    room = Capacity(
        *(None if size is None else options.memory_size(flag, size) for flag, size in sizes.items())
    )
    settings = command_line(overrides, cards_typed(machine, world_size))
    count = None if tokens is None else token_count("--tokens", tokens)
    estimates = forecast(
        file,
        settings,
        room=room,
        find_limits=limits,
        tokens=count,
        price=price,
        jobs=jobs,
        on_row=partial(_say, seeks=limits),
    )
    code = estimates.exit_code
    if console.state.json:
        console.document(estimates.document(), code)
    else:
        print_simulated(estimates)
        print_rows(estimates)
        for text in estimates.advice:
            console.note(f"note: {text}")
        print_assumptions(estimates)
    raise typer.Exit(code)


def _say(row: EstimateRow, number: int, of: int, *, seeks: bool) -> None:
    """Say on stderr what a configuration needs as soon as it is known, if others or its limits follow."""
    if of > 1 or seeks:
        told = [f"{c.title} {c.text(row)}" for c in (DEVICE, RESERVED, HOST) if c.value(row) is not None]
        told += [row.verdict] if row.verdict else []
        rest = "; now its limits" if seeks and row.fits is not None else ""
        console.note(f"{number} of {of}: {axes_text(row.trial.axes)}: {', '.join(told)}{rest}")
