"""The files for Ray's own tools are what these tools take."""

import json
from importlib import util
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

FILES = Path(__file__).parents[2] / "examples" / "ray"


def read(name: str) -> Any:
    return YAML(typ="safe").load(FILES / name)


def test_the_job_is_one_of_kuberay() -> None:
    job = read("rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for spec in (pod["template"]["spec"] for pod in pods):
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= {
            one["name"] for one in spec["volumes"]
        }
        assert container["resources"]["limits"] == container["resources"]["requests"], "whole, and no more"
    assert job["spec"]["entrypoint"].startswith("zbench sweep ")
    assert " --ray" in job["spec"]["entrypoint"]


def test_the_cluster_file_is_one_that_ray_up_takes() -> None:
    spec = util.find_spec("ray")
    if spec is None or spec.origin is None:
        pytest.skip("its schema comes with Ray")
    schema = json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    cluster = read("cluster.yaml")
    jsonschema.validate(cluster, schema)
    kinds = cluster["available_node_types"]
    assert cluster["head_node_type"] in kinds
    assert len(kinds) == 2, "what is compared runs on one kind of machine"
