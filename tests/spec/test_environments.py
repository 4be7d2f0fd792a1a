"""`environments`: a directory whose environments `engine_python` names; a wrong name says which exist."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zbench.spec import environments
from zbench.spec.expand import expand
from zbench.spec.sweep import SweepSpec

Loaded = Callable[..., SweepSpec]
Refusal = Callable[..., str]
AXIS = "engine: {engine: ddp}\naxes:\n  engine_python: [old, new]\n"


@pytest.fixture(autouse=True)
def torch_is_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every path but `gone` be an environment that has torch."""

    def describe(python: Path, _: tuple[str, ...]) -> environments.Environment | str:
        if "gone" in str(python):
            return "no such interpreter"
        version = (sys.version_info[0], sys.version_info[1], 0)
        tag = str(sys.implementation.cache_tag)
        packages = dict.fromkeys(("torch", *environments.WORKER_NEEDS), "2")
        return environments.Environment(python, version, tag, packages, frozenset())

    monkeypatch.setattr(environments, "describe", describe)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory with the environments `old` and `new`."""
    for name in ("old", "new"):
        (tmp_path / "envs" / name / "bin").mkdir(parents=True)
        (tmp_path / "envs" / name / "bin" / "python").touch()
    return tmp_path / "envs"


@pytest.mark.parametrize("values", ["[old, new]", "[old, /somewhere/new]"])
def test_an_environment_runs_by_path_and_is_shown_by_name(values: str, loaded: Loaded, folder: Path) -> None:
    trials = expand(loaded(AXIS.replace("[old, new]", values) + "environments: envs\n")).trials
    second = values.strip("[]").split(", ")[1]
    paths = [str(folder / "old"), str(folder / "new") if second == "new" else second]
    assert [trial.engine.engine_python for trial in trials] == paths
    assert [trial.axes["engine_python"] for trial in trials] == ["old", second]


def test_an_unknown_environment_is_invalid_with_the_known_names(
    loaded: Loaded, refusal: Refusal, folder: Path
) -> None:
    (missing,) = expand(loaded(AXIS.replace("new", "nwe"), ZBENCH_ENVIRONMENTS=str(folder))).invalid
    assert missing.reason == (
        f"no environment is named 'nwe' (did you mean 'new'?); {folder} has new, old; name one,"
        " or give a path"
    )
    assert "nowhere has none yet" in refusal(AXIS, "environments=nowhere")
