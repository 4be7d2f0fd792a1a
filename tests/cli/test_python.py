"""zbench from Python: what `import zbench` loads, and that runs are what the commands say of them."""

import subprocess
import sys
from pathlib import Path

import pytest

import zbench as face
from zbench.errors import ExitCode, UsageError

SWEEP = {
    "name": "tried",
    "workload": {"model": "fake_worker:model"},
    "run": {"repeats": 2},
    "axes": {"zero_stage": [0, 1]},
}


def test_importing_zbench_imports_nothing_else() -> None:
    code = """
import sys, typing
before = set(sys.modules)
import zbench
loaded = {name for name in set(sys.modules) - before if not name.startswith("importlib")}
assert loaded == {"zbench"}, loaded
assert {"load", "sweep", "compare", "build_engine", "EngineSpec"} <= set(dir(zbench))
zbench.EngineSpec
assert "torch" not in sys.modules
assert zbench.load.__module__ == "zbench.results"
assert "torch" not in sys.modules
assert zbench.build_engine.__module__.startswith("zbench.engine")
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(face.__file__).parents[1])
    with pytest.raises(AttributeError, match="no attribute 'swep'"):
        face.swep  # noqa: B018


def test_a_sweep_in_python_gives_what_show_prints(zbench):
    results = face.sweep(SWEEP)
    document = zbench("show", "--json").document
    assert (results.path.name, results.ranking.recommended) == (document["run_id"], document["recommended"])
    assert results.best is None
    assert results.recommended is not None
    assert results.recommended.number("tokens_per_s") == 1000
    assert face.load("last") == results == face.load(results.path)


def test_runs_and_comparisons_in_python_are_tables(zbench):
    base = face.sweep(SWEEP, set={"repeats": 1, "zero_stage": 1}, quiet=True)
    results = face.sweep(SWEEP)
    html = results._repr_html_()
    assert html.count("<tr") == 3
    assert "&lt;" not in html
    compared = face.compare(base.path, results, across=True)
    assert set(compared.answers.values()) == {"inconclusive"}
    assert compared.exit_code == ExitCode.INCONCLUSIVE
    assert compared._repr_html_().count("<tr") == 2
    pytest.importorskip("pandas")
    assert results.to_pandas().zero_stage.tolist() == [0, 1]
    assert compared.to_pandas().answer.tolist() == ["inconclusive"]


def test_what_a_run_ends_with_is_raised(zbench):
    with pytest.raises(UsageError, match="did you mean 'axes'"):
        face.sweep({"axs": {}})
    with pytest.raises(UsageError, match="run it by `zbench tune`"):
        face.sweep({**SWEEP, "search": {"method": "tpe"}})
    with pytest.raises(UsageError, match="no run 'last'"):
        face.load()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: face.sweep(None), "source: expected a path, got None"),
        (lambda: face.sweep(SWEEP, output_dir=5), "output_dir: expected a path, got 5"),
        (lambda: face.estimate("quickstart", set="zero_stage=2"), "set: expected a mapping such as"),
        (lambda: face.compare("a", "b", alpha="x"), "expected a probability above 0 and at most 0.2, got x"),
    ],
)
def test_a_mistake_in_python_is_one_clear_error(zbench, call, message):
    with pytest.raises(UsageError) as raised:
        call()
    assert message in str(raised.value)
