"""A sweep as a file: what its JSON Schema admits, and what is written reads back."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from zbench.spec.expand import expand
from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec, dump_sweep, sweep_document, sweep_schema

DIRECTORY = Path(__file__).parents[2] / "sweeps"
SWEEPS = sorted(DIRECTORY.rglob("*.yaml"))


def valid(document: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(sweep_schema()).is_valid(document))


def test_the_schema_is_one_and_describes_every_key() -> None:
    schema = sweep_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for model in [schema, *schema["$defs"].values()]:
        for key, described in model.get("properties", {}).items():
            named = schema["$defs"].get(described.get("$ref", "").rpartition("/")[2], {})
            assert described.get("description") or named.get("description"), key


def test_the_schema_beside_the_sweeps_is_current() -> None:
    written = (DIRECTORY / "schema.json").read_text()
    assert json.loads(written) == sweep_schema(), "run `zbench schema > sweeps/schema.json`"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_shipped_sweep_names_the_schema_and_fits_it(path: Path) -> None:
    schema = "../schema.json" if path.parent.name == "benchmarks" else "schema.json"
    assert path.read_text().splitlines()[0] == f"# yaml-language-server: $schema={schema}"
    assert valid(YAML(typ="safe", pure=True).load(path))
    assert load_sweep(path, (), {}, inputs=False).name == path.stem


@pytest.mark.parametrize(
    ("document", "admitted"),
    [
        ({"runs": {}}, False),
        ({"run": {"steps": 0}}, False),
        ({"engine": {"zero_stage": 4}}, False),
        ({"axes": {"zero_stage": 1}}, False),
        ({"objective": {"maximize": "verdict"}}, False),
        ({}, True),
        ({"run": {"timeout": "2min", "memory_limit": "2Gi"}}, True),
        ({"engine": {"reduce_bucket_size": "5e8", "param_groups": {"*.bias": {"lr": 0.1}}}}, True),
        ({"axes": {"lr": {"low": 1e-5, "high": 1, "log": True}}}, True),
    ],
)
def test_the_schema_admits_what_loading_admits(document: Any, admitted: bool) -> None:
    assert valid(document) is admitted


@pytest.mark.parametrize("defaults", [True, False])
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_shipped_sweep_reads_back_from_what_is_written(path: Path, defaults: bool, tmp_path: Path) -> None:
    sweep = load_sweep(path, (), {}, inputs=False)
    (tmp_path / "spec.yaml").write_text(dump_sweep(sweep, defaults=defaults))
    assert load_sweep(tmp_path / "spec.yaml", (), {}, inputs=False) == sweep


def test_every_key_is_written_unless_the_defaults_are_left_out() -> None:
    sweep = SweepSpec.model_validate({"name": "one", "run": {"steps": 3}})
    assert sweep_document(sweep)["run"].items() >= {"steps": 3, "warmup_steps": 2, "repeats": 5}.items()
    assert "repeats: 5" in dump_sweep(sweep)
    assert sweep_document(sweep, defaults=False) == {"name": "one", "run": {"steps": 3}}


@pytest.mark.parametrize("stage", [{}, {"zero_stage": 0}])
def test_a_recorded_sweep_has_the_same_trials(stage: dict[str, int], tmp_path: Path) -> None:
    """FSDP2 has a stage of its own only where the file names none."""
    axes = {"engine": ["builtin", "fsdp2", "zero_redundancy"]}
    sweep = SweepSpec.model_validate(
        {"name": "peers", "run": {"world_size": 2}, "engine": stage, "axes": axes}
    )
    (tmp_path / "spec.yaml").write_text(dump_sweep(sweep))
    again = load_sweep(tmp_path / "spec.yaml", environ={})
    assert [trial.trial_id for trial in expand(again).trials] == [t.trial_id for t in expand(sweep).trials]
    assert len(expand(again).trials) == (1 if stage else 3)
