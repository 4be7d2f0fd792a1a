"""The first sweep around what a user has: each kind of file is known by its keys."""

import json
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec import shapes
from zbench.spec.load import shipped_names, sweep_file
from zbench.spec.starting import starting_sweep


def around(tmp_path: Path, data: Any) -> dict[str, Any]:
    file = tmp_path / "given.json"
    file.write_text(json.dumps(data))
    return dict(starting_sweep(str(file), tmp_path).document)


def test_from_nothing_the_stages_of_a_small_model_are_swept(tmp_path: Path) -> None:
    found = starting_sweep(None, tmp_path).document
    assert found["workload"]["model"] == "gpt"
    assert found["axes"] == {"zero_stage": [0, 1, 2, 3], "offload_optimizer": ["none", "cpu"]}
    assert found["exclude"] == [{"zero_stage": 0, "offload_optimizer": "cpu"}]
    assert found["name"] == "first"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ({"distributed_type": "NO"}, "accelerate"),
        ({"compute_environment": "LOCAL_MACHINE"}, "accelerate"),
        ({"per_device_train_batch_size": 4}, "trainer"),
        ({"output_dir": "out"}, "trainer"),
        ({"learning_rate": 1e-4}, "trainer"),
    ],
)
def test_a_file_is_known_by_its_keys(data: dict[str, Any], name: str, tmp_path: Path) -> None:
    assert around(tmp_path, data)["name"] == name


def test_the_stage_of_a_deepspeed_configuration_becomes_an_axis(tmp_path: Path) -> None:
    found = around(tmp_path, {"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5})
    assert found["name"].endswith("-around-stage-2")
    assert "zero_stage" not in found["engine"]
    assert found["engine"]["gradient_clipping"] == 0.5


def test_a_file_without_a_stage_is_swept_around_stage_0(tmp_path: Path) -> None:
    found = around(tmp_path, {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})
    assert found["name"] == "deepspeed-around-stage-0"


def test_a_model_of_ones_own_is_the_workload(tmp_path: Path) -> None:
    assert starting_sweep("mine:make", tmp_path).document["workload"]["model"] == "mine:make"


def test_offloaded_parameters_leave_stage_3_alone(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}
    found = around(tmp_path, {"zero_optimization": zero})
    assert found["axes"]["zero_stage"] == [3]
    assert "exclude" not in found


@pytest.mark.parametrize(
    ("source", "options"),
    [("hf:gpt2", {"n_layer": 2}), ("hf:llama-3-8b", {"num_hidden_layers": 2})],
)
def test_a_model_of_transformers_has_two_layers_at_first(
    source: str, options: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "mistake", lambda model, base_dir: None)  # transformers takes seconds to ask
    found = starting_sweep(source, tmp_path).document["workload"]
    assert (found["model"], found["options"]) == (source, options)


@pytest.mark.parametrize("data", [[1, 2], {"nonsense": 1}])
def test_a_file_of_no_known_form_is_refused_with_the_forms(data: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"expected one of ds_config|or use one of ds_config"):
        around(tmp_path, data)
    with pytest.raises(UsageError, match=r"no such file; expected ds_config\.json"):
        starting_sweep(str(tmp_path / "absent.json"), tmp_path)


def test_a_bare_name_is_a_shipped_sweep_unless_such_a_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "quickstart" in shipped_names()
    assert sweep_file(Path("quickstart")).read_text().startswith("#")
    for other in ("quickstart.yaml", "here/quickstart", "no-such-sweep"):
        assert sweep_file(Path(other)) == Path(other)
    Path("quickstart").touch()
    assert sweep_file(Path("quickstart")) == Path("quickstart")
