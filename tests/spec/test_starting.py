"""The first sweep around what a user has: each kind of file is known by its keys."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec import shapes
from zbench.spec.expand import expand
from zbench.spec.load import sweep_file, sweep_from_mapping
from zbench.spec.starting import starting_sweep


def around(tmp_path: Path, data: Any) -> dict[str, Any]:
    file = tmp_path / "given.json"
    file.write_text(json.dumps(data))
    return dict(starting_sweep(str(file), tmp_path).document)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"distributed_type": "NO"}, "accelerate"),
        ({"per_device_train_batch_size": 4}, "trainer"),
        ({"output_dir": "out"}, "trainer"),
    ],
)
def test_the_keys_of_a_file_tell_its_tool(data: dict[str, Any], name: str, tmp_path: Path) -> None:
    sweep = sweep_from_mapping(around(tmp_path, data), environ={})
    assert sweep.name == name
    assert {trial.engine.zero_stage for trial in expand(sweep).trials} >= {2, 3}


@pytest.mark.parametrize(
    ("source", "options"),
    [("hf:gpt2", {"n_layer": 2}), ("hf:llama-3-8b", {"num_hidden_layers": 2})],
)
def test_a_model_of_transformers_has_two_layers_at_first(
    source: str, options: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "mistake", lambda model, base_dir: None)  # transformers takes seconds to ask
    started = starting_sweep(source, tmp_path, "mine")
    workload = started.document["workload"]
    assert (workload["model"], workload["options"]) == (source, options)
    assert (started.document["name"], started.document["run"]["repeats"]) == ("mine", 5)
    (note,) = started.notes
    assert re.search(r"cuts the model to 2 of its (\d+ )?layers", note.text)


@pytest.mark.parametrize("data", [[1, 2], {"nonsense": 1}])
def test_an_unknown_file_is_refused_with_the_known_forms(data: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected one of ds_config|or use one of ds_config"):
        around(tmp_path, data)
    with pytest.raises(UsageError, match=r"no such file; expected ds_config\.json"):
        starting_sweep(str(tmp_path / "absent.json"), tmp_path)


def test_a_bare_name_without_a_file_is_a_shipped_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sweep_file(Path("quickstart")).read_text().startswith("#")
    for other in ("quickstart.yaml", "here/quickstart", "no-such-sweep"):
        assert sweep_file(Path(other)) == Path(other)
    Path("quickstart").touch()
    assert sweep_file(Path("quickstart")) == Path("quickstart")


@pytest.mark.parametrize("config", [{"model_type": "t5"}])
def test_an_encoder_decoder_model_is_refused_with_the_way(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "mistake", lambda model, base_dir: None)
    with pytest.raises(UsageError, match="needs inputs for both parts; write a module with the model"):
        around(tmp_path, config)
