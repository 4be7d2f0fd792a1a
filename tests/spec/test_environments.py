"""`environments`: names for the Python environments of `engine_python`; a wrong name says which exist."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zbench.spec import environments
from zbench.spec.expand import expand
from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec

Loaded = Callable[..., SweepSpec]
Refusal = Callable[..., str]
AXIS = "engine: {engine: ddp}\naxes:\n  engine_python: [old, new]\n"
MAPPING = AXIS + "environments: {old: envs/old, new: /somewhere/new}\n"


@pytest.fixture(autouse=True)
def torch_is_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every path but `gone` be an environment that has torch."""

    def asked(python: Path, _: tuple[str, ...]) -> environments.Environment | str:
        if "gone" in str(python):
            return "no such interpreter"
        version = (sys.version_info[0], sys.version_info[1], 0)
        tag = str(sys.implementation.cache_tag)
        return environments.Environment(python, version, tag, {"torch": "2"}, frozenset())

    monkeypatch.setattr(environments, "_asked", asked)


def make_environments(place: Path, *names: str) -> None:
    for name in names:
        (place / name / "bin").mkdir(parents=True)
        (place / name / "bin" / "python").touch()


def test_a_trial_runs_under_the_path_and_is_shown_by_the_name(loaded: Loaded) -> None:
    trials = expand(loaded(MAPPING)).trials
    assert [trial.engine.engine_python for trial in trials] == ["envs/old", "/somewhere/new"]
    assert [trial.axes["engine_python"] for trial in trials] == ["old", "new"]
    path = expand(loaded(MAPPING.replace("[old, new]", "[old, ./other]"))).trials[1]
    assert path.engine.engine_python == "./other", "a path needs no name"


def test_a_name_that_the_mapping_lacks_is_refused_with_those_that_exist(refusal: Refusal) -> None:
    message = refusal(MAPPING.replace("[old, new]", "[old, nwe]"))
    assert message.startswith(
        "sweep.yaml:3: axes.engine_python: no environment is named 'nwe' (did you mean 'new'?)"
    )
    assert "environments has old, new; name one, or give a path" in message
    alone = refusal("engine: {engine: ddp, engine_python: nowhere}\nenvironments: {old: envs/old}")
    assert alone.startswith("sweep.yaml:1: engine.engine_python: no environment is named 'nowhere'")


def test_where_no_environment_has_a_name_any_text_is_a_path(loaded: Loaded) -> None:
    expansion = expand(loaded(AXIS.replace("[old, new]", "[old, gone]")))
    assert [trial.engine.engine_python for trial in expansion.trials] == ["old"]
    named = expand(loaded(MAPPING.replace("/somewhere/new", "gone")))
    assert [one.invalid[0].reason for one in (expansion, named)] == ["gone: no such interpreter"] * 2


def test_a_name_in_an_included_point_is_checked_too(refusal: Refusal) -> None:
    text = "engine: {engine: ddp}\nenvironments: {old: envs/old}\ninclude:\n"
    message = refusal(text + "  - {zero_stage: 0}\n  - {engine_python: odl}\n")
    assert message.startswith("sweep.yaml:5: include[1]: no environment is named 'odl' (did you mean 'old'?)")


def test_names_are_not_checked_in_a_file_that_is_only_looked_at(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(MAPPING.replace("[old, new]", "[old, nwe]"))
    sweep = load_sweep(tmp_path / "sweep.yaml", (), {}, inputs=False)
    assert sweep.axes == {"engine_python": ["old", "nwe"]}
    assert sweep.place is None


def test_a_directory_names_the_environments_in_it(loaded: Loaded, refusal: Refusal, tmp_path: Path) -> None:
    make_environments(tmp_path / "envs", "old", "other")
    expansion = expand(loaded(AXIS + "environments: envs\n"))
    assert [trial.engine.engine_python for trial in expansion.trials] == [str(tmp_path / "envs" / "old")]
    (missing,) = expansion.invalid
    assert "no environment is named 'new'; environments has old, other" in missing.reason
    assert "holds none yet" in refusal(AXIS, ZBENCH_ENVIRONMENTS="nowhere")


def test_the_directory_can_be_set_from_outside(loaded: Loaded, tmp_path: Path) -> None:
    make_environments(tmp_path / "mine", "old", "new")
    for sweep in (
        loaded(AXIS, f"environments={tmp_path}/mine"),
        loaded(MAPPING, ZBENCH_ENVIRONMENTS=str(tmp_path / "mine")),
    ):
        assert len(expand(sweep).trials) == 2


def test_compiled_extensions_of_each_environment_lie_apart_in_the_users_cache() -> None:
    old, new = (
        environments.extensions_directory(Path(f"/envs/{name}/bin/python"), {"XDG_CACHE_HOME": "/cache"})
        for name in ("old", "new")
    )
    assert old.parent == new.parent == Path("/cache/zbench/extensions")
    assert old != new
    assert old.name == "c296c863f54e", "the same in every version: they are built once"
    for nothing in ({}, {"XDG_CACHE_HOME": ""}):
        at_home = environments.extensions_directory(Path("/envs/old/bin/python"), nothing)
        assert at_home == Path.home() / ".cache" / "zbench" / "extensions" / old.name
