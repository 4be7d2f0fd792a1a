import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from zbench.spec.keys import known_paths, short_name
from zbench.spec.load import load_sweep
from zbench.spec.sweep import sweep_schema

DIRECTORY = Path(__file__).parents[2] / "sweeps"
SWEEPS = sorted(DIRECTORY.glob("*.yaml"))


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
    assert path.read_text().splitlines()[0] == "# yaml-language-server: $schema=schema.json"
    assert valid(YAML(typ="safe", pure=True).load(path))
    assert load_sweep(path, (), {}, inputs=False).name == path.stem


@pytest.mark.parametrize(
    "document",
    [
        {"runs": {}},
        {"run": {"steps": 0}},
        {"run": {"steps": "two"}},
        {"engine": {"zero_stage": 4}},
        {"engine": {"reduce_bucket_size": -1}},
        {"axes": {"zero_stage": 1}},
        {"axes": {"lr": {"low": 1, "high": 2, "logarithmic": True}}},
        {"objective": {"maximize": "verdict"}},
        {"objective": {"subject_to": {"peak_memory": "<= 1"}}},
    ],
)
def test_the_schema_refuses_what_loading_refuses(document: Any) -> None:
    assert not valid(document)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"run": {"timeout": "2min", "memory_limit": "2Gi"}},
        {"engine": {"reduce_bucket_size": "5e8", "param_groups": {"*.bias": {"lr": 0.1}}}},
        {"axes": {"zero_stage": [0], "options.width": [1], "lr": {"low": 1e-5, "high": 1, "log": True}}},
        {"objective": {"maximize": ["tokens_per_s"], "minimize": "peak_device_bytes"}},
    ],
)
def test_the_schema_admits_what_loading_admits(document: Any) -> None:
    assert valid(document)


def test_every_key_has_a_short_name_of_its_own() -> None:
    names = [short_name(path) for path in known_paths()]
    assert len(set(names)) == len(names)
