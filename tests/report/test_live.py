"""What is told while a sweep runs, on a terminal and in a log."""

import io
from pathlib import Path

import pytest

from zbench.launch.events import Notice, ReferenceStarted, StepDone, SweepStarted, TrialFinished, TrialStarted
from zbench.report.live import view
from zbench.report.screen import Screen
from zbench.spec.trial import TrialSpec

from .test_printable import HOSTILE
from .test_table import FASTEST, failed, record, without_styles

TRIAL = TrialSpec.model_validate({"workload": {}, "run": {}, "engine": {}, "axes": {"zero_stage": 1}})


def tell(shown) -> None:
    with shown as show:
        show(
            SweepStarted(Path("results/run"), 2, 3, [record(0, 500.0)], ("zero_stage", "reduce_bucket_size"))
        )
        show(ReferenceStarted(TRIAL))
        show(TrialStarted(TRIAL, 0))
        show(StepDone(TRIAL, {"phase": "timed", "step": 1, "steps": 4}))
        for _ in range(2):
            show(Notice("rank 1 was killed; running it again"))
        show(TrialFinished(TRIAL, record(1, 1000.0), 2.0, left=2))
        show(TrialFinished(TRIAL, failed(2, "crashed", "it fell over"), 4.0, left=1))


def screen(*, width: int = 80, terminal: bool) -> Screen:
    return Screen(file=io.StringIO(), width=width, force_terminal=terminal, no_color=True)


def output(*, width: int, terminal: bool) -> str:
    console = screen(width=width, terminal=terminal)
    tell(view(console, FASTEST, quiet=False))
    return without_styles(console.file.getvalue())


def test_plain_lines_say_what_ended_and_how_long_is_left():
    assert output(width=80, terminal=False).splitlines() == [
        "2 configurations, 3 repeats to run, 1 record kept: results/run",
        "importing torch, once for all trials",
        "computing the reference in plain PyTorch",
        "starting zero_stage=1 #1",
        "note: rank 1 was killed; running it again",
        "[1/3] ok      zero_stage=1 reduce_bucket_size=5M #1  1,000 tokens/s  20 MiB  identical  (0:04 left)",
        "[2/3] crashed zero_stage=2 reduce_bucket_size=5M #1  it fell over  (0:03 left)",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_no_name_or_message_commands_the_terminal(terminal):
    axes = {HOSTILE: HOSTILE}
    trial = TRIAL.model_copy(update={"axes": axes})
    console = screen(width=200, terminal=terminal)
    with view(console, FASTEST, quiet=False) as show:
        show(SweepStarted(Path(HOSTILE), 2, 3, [failed(0, "oom", HOSTILE, axes=axes)], (HOSTILE,)))
        show(TrialStarted(trial, 0))
        show(StepDone(trial, {"phase": HOSTILE, "step": 1, "steps": 4}))
        show(Notice(HOSTILE))
        show(TrialFinished(trial, failed(2, "crashed", HOSTILE, axes=axes), 4.0, left=1))
    text = console.file.getvalue()
    assert "[/red]" in text
    assert terminal or "kept (only a new run repeats what failed): " in text
    assert not [raw for raw in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\u202e", "\udc80") if raw in text]


@pytest.mark.parametrize("width", [60, 120])
def test_terminal_shows_rows_and_a_bar_with_best_and_failures(width):
    text = output(width=width, terminal=True)
    assert "zero_stage=1 reduce_bucket_size=5M #1" in text
    for words in (
        "2/3",
        "0:03 left",
        "1 failed",
        "leads so far 1,000 tokens/s",
        "starting zero_stage=1 #1 timed 1/4",
    ):
        assert words in text, words
    assert "\\x1b" not in text, "cursor movements are commands"


@pytest.mark.parametrize(("repeats", "trials"), [(3, "at most 3 trials"), (0, "trials within the budget")])
def test_a_search_counts_what_it_has_tried_without_a_total(repeats: int, trials: str) -> None:
    said = {}
    for terminal in (False, True):
        console = screen(width=200, terminal=terminal)
        with view(console, FASTEST, quiet=False) as show:
            show(SweepStarted(Path("run"), 9, repeats, [], is_search=True))
            show(TrialFinished(TRIAL, record(1, 1000.0), 2.0, left=2))
        said[terminal] = without_styles(console.file.getvalue())
    first, *_, last = said[False].splitlines()
    assert first == f"{trials}, then the best of them again: run"
    assert (last[:7], "left" in last) == ("[1] ok ", False)
    assert "1 repeat " in said[True]
