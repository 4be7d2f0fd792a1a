"""What an interpreter is asked, and what is said of one that cannot answer."""

import sys
from pathlib import Path

import pytest

from zbench.spec.environments import Environment, environment


def test_this_interpreter_answers_for_itself() -> None:
    answer = environment(sys.executable, Path(), ("pytest",))
    assert isinstance(answer, Environment)
    assert answer.python[:2] == sys.version_info[:2]
    assert answer.same_python
    assert answer.facts()["pytest"] == pytest.__version__
    assert {"path", "python", "torch"} <= answer.facts().keys()


@pytest.mark.parametrize(
    ("script", "mode", "message"),
    [
        ("#!/bin/sh\nexit 1\n", 0o755, "is not a working Python interpreter; name another"),
        ("#!/bin/sh\necho no json\n", 0o755, "is not a working Python interpreter; name another"),
        ("#!/bin/sh\n", 0o644, "cannot be run (Permission denied); name a Python executable"),
    ],
)
def test_what_is_no_interpreter_is_told(script: str, mode: int, message: str, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text(script)
    fake.chmod(mode)
    assert environment("python", tmp_path) == f"python: {message}"
    absent = environment("absent", tmp_path)
    assert isinstance(absent, str)
    assert absent.startswith("absent: no such interpreter")
