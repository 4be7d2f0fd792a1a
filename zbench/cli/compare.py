"""`zbench compare`: is HEAD slower, bigger or wrong against BASE? Answers with an exit code CI can trust."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zbench.cli import console
from zbench.cli.options import DEFAULT_OUTPUT_DIR, OutputDir, Overrides, Seed, common_flags
from zbench.errors import UsageError

if TYPE_CHECKING:
    from zbench.analysis.compare import Comparison, Settings

_FORMATS = ("table", "markdown", "json", "csv", "junit", "bmf", "gha")
_PAIRED = "Paired measurement (--paired)"

Base = Annotated[str, typer.Argument(metavar="BASE", help="Run, file, directory, baseline, or @BRANCH.")]
Head = Annotated[str | None, typer.Argument(metavar="HEAD", help="The same, to be judged against BASE.")]
Format = Annotated[str, typer.Option("--format", metavar="FORMAT", help=", ".join(_FORMATS))]
To = Annotated[
    Path | None,
    typer.Option("--to", metavar="PATH", help="Write there, not to stdout (gha: a directory)."),
]
AllFormats = Annotated[
    Path | None, typer.Option("--all-formats", metavar="DIR", help="Also write every format into DIR.")
]
Threshold = Annotated[
    list[str],
    typer.Option(
        "--threshold",
        metavar="METRIC=PERCENT",
        help="Accepted change, as step_time=3%; repeatable. [default: 5% stored, 2% paired; bytes 1%]",
    ),
]
Alpha = Annotated[float, typer.Option(help="Chance of any false alarm in the comparison, one-sided.")]
RunNoise = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT",
        help="How far this machine shifts between runs. [default: what 10 earlier runs show]",
    ),
]
FailOnOption = Annotated[
    str,
    typer.Option(
        "--fail-on",
        metavar="LIST",
        help="Of regression,suspected,unchecked,inconclusive,missing,correctness; or none.",
    ),
]
Across = Annotated[
    bool, typer.Option("--across", help="Compare unlike machines all the same; marked as such.")
]
SaveBaseline = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Keep the last named results as baseline NAME or @BRANCH."),
]
PairedFlag = Annotated[
    bool,
    typer.Option(
        "--paired", rich_help_panel=_PAIRED, help="BASE and HEAD are git revisions or interpreters."
    ),
]
Sweep = Annotated[
    Path | None, typer.Option(metavar="FILE", rich_help_panel=_PAIRED, help="Sweep file that both sides run.")
]
Blocks = Annotated[
    str | None,
    typer.Option(
        metavar="MIN:MAX",
        rich_help_panel=_PAIRED,
        help="Blocks of four runs; 0: exact figures only. [default: 8:24]",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="PERCENT",
        rich_help_panel=_PAIRED,
        help="Measure on, though all is decided, until every interval's half width is this.",
    ),
]


@common_flags()
def command(
    base: Base,
    head: Head = None,
    output_format: Format = "table",
    to: To = None,
    all_formats: AllFormats = None,
    thresholds: Threshold = [],  # noqa: B006 - Typer reads the default, nobody changes it
    alpha: Alpha = 0.01,
    run_noise: RunNoise = None,
    fail_on: FailOnOption = "regression,suspected,unchecked,inconclusive,missing,correctness",
    across: Across = False,
    save_baseline: SaveBaseline = None,
    paired: PairedFlag = False,
    sweep: Sweep = None,
    blocks: Blocks = None,
    precision: Precision = None,
    overrides: Overrides = [],  # noqa: B006
    seed: Seed = None,
    output_dir: OutputDir = DEFAULT_OUTPUT_DIR,
) -> None:
    """Compare two runs, or with --paired two revisions: regression, suspected, pass or inconclusive.

    zbench compare last~1 last

    zbench compare @main last

    zbench compare HEAD~1 HEAD --paired --sweep sweeps/quickstart.yaml

    Exit status: 0 pass, 1 regression, 2 bad input, 3 inconclusive, 4 incorrect results in HEAD,
    5 incomparable or no baseline, 6 trials missing or failed in HEAD.
    """
    output_format = _checked_format("json" if console.state.json else output_format)
    settings = _settings(thresholds, alpha, run_noise, fail_on, across=across, paired=paired)
    if paired:
        from zbench.cli.compare_paired import PairedRequest, measure, parse_blocks

        counts, changes = parse_blocks(blocks), tuple(overrides)
        request = PairedRequest(base, head, sweep, counts, precision, changes, seed, save_baseline)
        comparison: Comparison | None = measure(request, settings)
    else:
        _refuse_paired_options(
            sweep=sweep, blocks=blocks, precision=precision, set=overrides or None, seed=seed
        )
        comparison = _compare_stored(base, head, settings, output_dir, save_baseline)
    if comparison is not None:
        _deliver(comparison, output_format, to, all_formats, every_row=console.state.verbose)
        raise typer.Exit(int(comparison.exit_code))


def _settings(
    thresholds: list[str], alpha: float, run_noise: str | None, fail_on: str, *, across: bool, paired: bool
) -> "Settings":
    from zbench.analysis import settings as read
    from zbench.analysis.compare import Settings

    return Settings(
        read.check_alpha(alpha),
        read.parse_thresholds(thresholds, paired=paired),
        None if run_noise is None else read.parse_percent(run_noise, "--run-noise"),
        read.parse_fail_on(fail_on),
        across,
    )


def _checked_format(name: str) -> str:
    if name not in _FORMATS:
        from zbench.errors import nearest

        raise UsageError(
            f"--format: unknown {name!r}{nearest(name, _FORMATS)}; expected {', '.join(_FORMATS)}"
        )
    return name


def _refuse_paired_options(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name} belongs to a paired measurement; add --paired, or leave it out")


def _compare_stored(
    base: str, head: str | None, settings: "Settings", output_dir: Path, save_baseline: str | None
) -> "Comparison | None":
    """Compare two stored results; None where only a baseline was to be kept."""
    from zbench.analysis import sources
    from zbench.analysis.compare import compare_runs, require_two_runs
    from zbench.analysis.noise import noise_between_runs

    base, head, save_baseline = _branch(base) or base, _branch(head), _branch(save_baseline)
    if head is None and save_baseline is None:
        raise UsageError("expected BASE and HEAD; one alone can only be kept, with --save-baseline NAME")
    loaded = [sources.load_results(name, output_dir) for name in (base, head) if name is not None]
    for results in loaded:
        if results.source.path and sources.is_torn(Path(results.source.path)):
            console.warn(f"{results.source.path} ends in the middle of a record, which is left out")
    comparison = None
    if len(loaded) == 2:
        require_two_runs(loaded[0].source, loaded[1].source)
        noise = noise_between_runs(loaded[0], loaded[1], output_dir) if settings.run_noise is None else None
        comparison = compare_runs(loaded[0], loaded[1], settings, noise)
    if save_baseline is not None:
        console.note(
            f"baseline {save_baseline}: {sources.save_baseline(save_baseline, loaded[-1], output_dir)}"
        )
    return comparison


def _branch(name: str | None) -> str | None:
    """Return the baseline's name for `@BRANCH`, or for `@`, the branch that is checked out here."""
    if name is None or not name.startswith("@"):
        return name
    from zbench.analysis.sources import branch_baseline
    from zbench.launch.revisions import git

    branch = name[1:] or git("rev-parse", "--abbrev-ref", "HEAD").stdout.decode().strip()
    if not branch:
        raise UsageError("`@` is the baseline of the branch checked out here, and this is no git repository")
    return branch_baseline(branch)


def _deliver(
    comparison: "Comparison",
    output_format: str,
    to: Path | None,
    all_formats: Path | None,
    *,
    every_row: bool,
) -> None:
    from zbench.report import exports

    if all_formats is not None:
        exports.write(exports.files(comparison), all_formats)
    if output_format == "gha":
        for path in exports.write(exports.files(comparison, "gha"), to or Path()):
            console.result(str(path))
    elif output_format == "table":
        _print_table(comparison, to, every_row=every_row)
    elif to is not None:
        render, _ = exports.TEXT_FORMATS[output_format]
        exports.write({to.name: render(comparison) + "\n"}, to.parent)
    else:
        render, _ = exports.TEXT_FORMATS[output_format]
        console.state.document_printed = output_format == "json"
        console.data(render(comparison))


def _print_table(comparison: "Comparison", to: Path | None, *, every_row: bool) -> None:
    from zbench.report import exports
    from zbench.report.exports import table

    if to is None:
        table.print_comparison(comparison, console.rich_console(), every_row=every_row)
        return
    import io

    from zbench.report.screen import Screen

    text = io.StringIO()
    table.print_comparison(comparison, Screen(file=text, width=160), every_row=True)
    exports.write({to.name: text.getvalue()}, to.parent)
