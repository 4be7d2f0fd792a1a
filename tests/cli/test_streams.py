"""Whatever stdout, stderr and the environment are, a command ends with a message and a documented code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.synthetic import HEAD_ID, trial, write_run

NAME = "größe\U0001f642"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    records = trial([0.1, 0.11], axes={"zero_stage": 1, "name": NAME})
    write_run(tmp_path / "results" / "example" / HEAD_ID, records)
    return tmp_path


def shell(cwd: Path, command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run `zbench COMMAND` by a shell, redirections included."""
    return subprocess.run(
        ["bash", "-c", f"{sys.executable} -m zbench.cli.main {command}"],
        cwd=cwd, env=os.environ | environment, capture_output=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("encoding", "shows"),
    [
        ("ascii", b"gr\\xf6\\xdfe\\U0001f642"),
        pytest.param("latin-1", "größe\\U0001f642".encode("latin-1"), marks=pytest.mark.check),
        pytest.param("utf-8:surrogateescape", NAME.encode(), marks=pytest.mark.check),
    ],
)
def test_any_encoding_shows_every_name(results, encoding, shows):
    done = shell(results, "show", PYTHONIOENCODING=encoding)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert shows in done.stdout
    assert b"*" in done.stdout


@pytest.mark.parametrize(
    "command", ["show", *(pytest.param(name, marks=pytest.mark.check) for name in ("list --json", "--help"))]
)
@pytest.mark.parametrize(("where", "says"), [("/dev/full", b"No space left"), ("&-", b"stdout is closed")])
def test_a_result_that_cannot_be_written_is_said_once(results, command, where, says):
    done = shell(results, f"{command} >{where}")
    assert done.returncode == 2
    assert done.stderr.count(b"error:") == 1
    assert says in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_messages_that_nobody_can_read_change_nothing(results):
    shown = shell(results, "show").stdout
    assert shell(results, "show 2>/dev/full").stdout == shown
    assert shell(results, "show nope 2>&-").returncode == 2


def test_a_closed_stdout_gives_its_number_to_no_file(results):
    done = shell(results, "report --html page.html >&- 2>&-")
    assert done.returncode == 2
    assert not (results / "page.html").exists()


def test_bytes_that_are_no_text_can_be_arguments(results):
    done = shell(results, "show $'\\xff\\x1b[2J'")
    assert done.returncode == 2
    assert b"\\udcff\\x1b[2J" in done.stderr
