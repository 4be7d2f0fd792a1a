"""What an interpreter is asked, and what is said of one that cannot answer."""

import subprocess
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


def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it() -> None:
    message = environment(sys.executable, Path(), ("no-such-package",))
    assert message == (
        f"{sys.executable} has no no-such-package; run `{sys.executable} -m pip install no-such-package`"
    )


@pytest.mark.parametrize(
    ("script", "mode", "message"),
    [
        ("#!/bin/sh\nexit 1\n", 0o755, "is not a working Python interpreter; name another"),
        ("#!/bin/sh\necho no json\n", 0o755, "is not a working Python interpreter; name another"),
        ("#!/bin/sh\necho '{}'\n", 0o755, "is not a working Python interpreter; name another"),
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


def test_an_interpreter_that_does_not_answer_is_given_up_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def never_ends(command: list[str], *, timeout: float, **_: object) -> None:
        waited.append(timeout)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", never_ends)
    (tmp_path / "python").touch()
    assert environment("python", tmp_path) == (
        "python: gave no answer within a minute; name a Python executable"
    )
    assert waited == [60]
