"""Foreign text is shown and never interpreted, and no record can break a renderer."""

import ast
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from zbench.analysis.ranking import by_figure, rank
from zbench.record.record import Correctness, Failure, MemoryPeaks, Record, Timing, Traffic
from zbench.record.summary import summarize
from zbench.report.detail import print_configuration
from zbench.report.live import record_line
from zbench.report.screen import Screen, plain
from zbench.report.table import print_results
from zbench.report.text import printable, printable_lines
from zbench.spec.sweep import ObjectiveSpec

from .test_table import FASTEST, record

PACKAGE = Path(__file__).parents[2] / "zbench"
HOSTILE = "[/red]\x1b]0;owned\x07\x1b[2J\u202e\x9b31m:skull: [b]\udc80\r\n*.[bw]*"


def shown(*renderables: object, width: int = 200, terminal: bool = False) -> str:
    out = io.StringIO()
    screen = Screen(file=out, width=width, force_terminal=terminal, no_color=True)
    for renderable in renderables:
        screen.print(renderable)
    return out.getvalue()


def test_control_characters_are_spelled_out():
    assert printable("a\x1b[2J\x07\n\u202e\udc80\x9b") == "a\\x1b[2J\\x07\\n\\u202e\\udc80\\x9b"
    assert printable_lines("one\n\ttwo\r") == "one\n    two\\r"
    assert printable("größe 模型 🙂 ±") == "größe 模型 🙂 ±"


@given(st.text(st.characters(codec=None)))
def test_printable_text_has_no_control_character(text):
    once = printable(text)
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 or "\ud800" <= char <= "\udfff" for char in once)
    assert printable(once) == once


@pytest.mark.parametrize("make", [str, Text, plain, lambda text: cell(text), lambda text: cell(Text(text))])
def test_nothing_on_a_screen_is_markup_or_a_terminal_command(make):
    output = shown(make(HOSTILE))
    assert "[/red]" in output
    assert ":skull:" in output
    assert "*.[bw]*" in output
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(output)


def cell(text: str | Text) -> Table:
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    return table


def test_only_the_screen_makes_consoles_and_only_the_console_prints():
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE))
        if name.startswith(("_inside.py", "worker/", "launch/process/server.py")):
            continue  # programs of their own, into logs: no report, no terminal
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            prints = ("app/voice.py", "cli/console.py", "cli/failure.py", "cli/main.py")
            assert called != "print" or name in prints, name
            assert called != "Console", f"{name}: make a zbench.report.screen.Screen"
            assert not called.endswith("from_markup"), name
            assert not called.startswith(("sys.stdout.write", "sys.stderr.write")), name


numbers = st.floats() | st.sampled_from([0.0, -1.0, 1e308, math.inf, -math.inf, math.nan])
texts = st.sampled_from(["", "zero_stage", HOSTILE, "a" * 300]) | st.text(max_size=10)
values = st.none() | st.booleans() | st.integers() | numbers | texts
mappings = st.dictionaries(texts, values | st.dictionaries(texts, values, max_size=2), max_size=3)
sizes = st.none() | st.integers(-1, 2**70)
records = st.builds(
    Record,
    run_id=texts,
    trial_id=st.sampled_from(["a", "b", HOSTILE, ""]),
    repeat=st.integers(0, 2),
    axes=mappings,
    config=mappings,
    outcome=st.sampled_from(["ok", "oom", "timeout", "crashed", "invalid"]),
    error=st.none() | st.builds(Failure, texts, texts, st.none() | texts),
    timing=st.none()
    | st.builds(
        Timing, st.lists(numbers, max_size=3), numbers, numbers, numbers, st.none() | numbers,
        st.dictionaries(texts, numbers, max_size=2),
    ),
    memory=st.none()
    | st.builds(
        MemoryPeaks,
        *(sizes, sizes, sizes),
        st.dictionaries(texts, st.integers(0, 2**70), max_size=2),
        st.booleans(),
    ),
    traffic=st.dictionaries(texts, st.builds(Traffic, st.integers(), st.integers()), max_size=2),
    correctness=st.builds(
        Correctness, st.sampled_from(["identical", "equivalent", "drifted", "wrong", "unchecked"]),
        st.none() | numbers, st.none() | numbers, st.none() | st.integers(), st.none() | texts,
    ),
    warnings=st.lists(texts, max_size=2),
)  # fmt: skip
objectives = st.sampled_from(
    [FASTEST, ObjectiveSpec(minimize=["median_step_s"], subject_to={"peak_device_bytes": "<= 2Gi"})]
)


@settings(max_examples=25, deadline=None)
@given(st.lists(records, max_size=4), objectives, st.sampled_from([1, 20, 80, 200]), st.booleans())
def test_any_record_can_be_rendered(sample, objective, width, terminal):
    out = io.StringIO()
    screen = Screen(file=out, width=width, force_terminal=terminal, no_color=True)
    print_results(screen, sample, objective, Path("run"))
    for summary in summarize(sample):
        print_configuration(screen, summary, Path("run"))
    for one in sample:
        screen.print(record_line(one))
    assert "\x07" not in out.getvalue()


@pytest.mark.parametrize("rate", [math.inf, math.nan, -math.inf])
def test_what_is_not_finite_is_never_the_best(rate):
    absurd = record(0, 900.0)
    absurd = replace(absurd, timing=replace(absurd.timing, tokens_per_s=rate, median_step_s=rate))
    fine = record(1, 100.0)
    for objective in (FASTEST, ObjectiveSpec(minimize=["median_step_s"])):
        assert by_figure(summarize([absurd, fine]), objective)[0].trial_id == fine.trial_id
        assert by_figure(summarize([absurd]), objective) == []
        assert rank(summarize([absurd, fine]), objective).recommended == fine.trial_id
        assert rank(summarize([absurd]), objective).recommended is None
