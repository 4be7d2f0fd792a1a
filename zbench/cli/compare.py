"""`zbench compare`: is HEAD slower, bigger or wrong against BASE? Answers with an exit code CI can trust."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from zbench.analysis import settings as read
from zbench.analysis.compare import Comparison
from zbench.analysis.settings import Settings
from zbench.app.compare import compare_stored, measure, parse_blocks, samples_file
from zbench.cli import console, options
from zbench.cores import use_cores
from zbench.errors import UsageError
from zbench.report import exports
from zbench.report.exports import table
from zbench.scratch import use_state_folder

Format = Literal["table", "markdown", "json", "csv", "junit"]
_PAIRED = "Paired measurement (--paired)"


def _of_paired(metavar: str, help: str) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=_PAIRED)


def command(
    base: Annotated[str, options.run_argument("BASE", "A run, file, directory, baseline, or @BRANCH.")],
    head: Annotated[
        str | None, options.run_argument("HEAD", "The results to compare with BASE, named in the same ways.")
    ] = None,
    output_format: Annotated[Format, typer.Option("--format", help="Format of the output.")] = "table",
    all_formats: Annotated[
        Path | None, typer.Option("--all-formats", metavar="DIR", help="Also write every format into DIR.")
    ] = None,
    thresholds: Annotated[
        list[str],
        typer.Option(
            "--threshold",
            metavar="METRIC=PERCENT",
            help="Accepted change, such as step_time=3%; repeatable. Default: time 5% (2% paired), bytes 1%.",
        ),
    ] = [],  # noqa: B006 - Typer reads the default, nobody changes it
    alpha: Annotated[
        float, typer.Option(help="Probability of at least one false alarm in the comparison, one-sided.")
    ] = 0.01,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            metavar="LIST",
            help="Answers that fail the comparison, separated by commas; or none. Default: all of them.",
            show_default=False,
        ),
    ] = "regression,suspected,unchecked,inconclusive,missing,correctness",
    across: Annotated[
        bool, typer.Option("--across", help="Compare even if the machines differ; the result says so.")
    ] = False,
    save_baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Save HEAD (BASE, if it is alone) as baseline NAME or @BRANCH."),
    ] = None,
    paired: Annotated[
        bool,
        typer.Option(
            "--paired", rich_help_panel=_PAIRED, help="Measure BASE and HEAD: git revisions or interpreters."
        ),
    ] = False,
    sweep: Annotated[Path | None, _of_paired("FILE", "Sweep file that both sides run.")] = None,
    blocks: Annotated[
        str | None, _of_paired("MIN:MAX", "Blocks of four runs; 0: exact figures only. Default: 8:24.")
    ] = None,
    max_time: Annotated[
        str | None, _of_paired("TIME", "Start no block that would end after this time, such as 20min.")
    ] = None,
    resume: Annotated[
        str | None, _of_paired("FILE", "Continue the measurement in this file, or `last`.")
    ] = None,
    overrides: options.Overrides = [],  # noqa: B006
    seed: options.Seed = None,
    output_dir: options.OutputDir = options.DEFAULT_OUTPUT_DIR,
    scratch: options.Scratch = None,
    cores: options.Cores = None,
) -> None:
    """Compare two runs, or with --paired two revisions: regression, suspected, pass or inconclusive.

    Exit codes: 0 pass, 1 regression, 2 bad input, 3 inconclusive,
    4 incorrect results in HEAD, 5 incomparable, 6 trials missing or failed
    in HEAD.
    """
    use_state_folder(scratch, console.warn)
    use_cores(cores)
    settings = Settings(
        read.check_alpha(alpha),
        read.parse_thresholds(thresholds, paired=paired),
        read.parse_fail_on(fail_on),
        across,
    )
    voice = console.voice()
    if paired:
        if sweep is None:
            raise UsageError("--paired runs a sweep with both versions; name its file with --sweep FILE")
        if head is None:
            raise UsageError("--paired expects two revisions or interpreters: BASE and HEAD")
        if save_baseline is not None:
            raise UsageError("--save-baseline saves stored results and --paired stores none; leave one out")
        comparison: Comparison | None = measure(
            (base, head), sweep, parse_blocks(blocks), settings, voice,
            overrides=overrides, seed=seed, max_seconds=options.seconds(max_time, "--max-time"),
            sample_file=samples_file(output_dir, resume),
        )  # fmt: skip
    else:
        of_paired: dict[str, object] = {
            "sweep": sweep, "blocks": blocks, "max-time": max_time, "resume": resume,
            "set": overrides or None, "seed": seed,
        }  # fmt: skip
        for name, value in of_paired.items():
            if value is not None:
                raise UsageError(f"--{name} needs --paired; add --paired, or leave --{name} out")
        comparison = compare_stored(base, head, settings, output_dir, voice, save_baseline)
    if comparison is not None:
        if all_formats is not None:
            exports.write(exports.files(comparison), all_formats)
        _print(comparison, "json" if console.state.json else output_format)
        raise typer.Exit(int(comparison.exit_code))


def _print(comparison: Comparison, output_format: str) -> None:
    if output_format == "table":
        table.print_comparison(comparison, console.rich_console())
        return
    render, _ = exports.FORMATS[output_format]
    console.data(render(comparison))
