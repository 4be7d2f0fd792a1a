"""Keys of a sweep file as paths: the models that check them, and what an override may name."""

from typing import Any

import pytest

from zbench.spec.document import Document
from zbench.spec.keys import assign, holder, known_paths, resolve_key


def test_the_holder_of_a_path_has_the_field_that_it_names() -> None:
    for path in [*known_paths(), ("engine", "param_groups", "*.bias"), ("engine", "param_groups", "x", "lr")]:
        model = holder(path)
        assert model is not None
        assert path[-1] in model.model_fields, path
    assert holder(("workload", "options", "width")) is None


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("options", ("workload", "options")),
        ("options.width", ("workload", "options", "width")),
        ("param_groups.lr", ("engine", "param_groups", "lr")),
        ("param_groups.bias.lr", ("engine", "param_groups", "bias", "lr")),
        ("param_groups.layers.0.bias", ("engine", "param_groups", "layers.0.bias")),
    ],
)
def test_a_pattern_of_parameters_may_hold_dots_and_be_a_keys_name(key: str, path: tuple[str, ...]) -> None:
    assert resolve_key(key) == path


@pytest.mark.parametrize(
    ("key", "value", "data"),
    [
        ("text", "b.txt", {"text": "b.txt"}),
        ("text", None, {"text": None, "synthetic": True}),
        ("synthetic", True, {"synthetic": True}),
        ("synthetic", False, {"text": "a.txt", "synthetic": False}),
        ("dataset", "m:f", {"text": "a.txt", "synthetic": True, "dataset": "m:f"}),
    ],
)
def test_a_text_and_synthetic_data_replace_each_other(key: str, value: object, data: dict[str, Any]) -> None:
    config = {"workload": {"data": {"text": "a.txt", "synthetic": True}}}
    assign(config, ("workload", "data", key), value)
    assert config == {"workload": {"data": data}}


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ({(): 1, ("a",): 2, ("a", "b"): 3}, 3),
        ({(): 1, ("a",): 2}, 2),
        ({(): 1, ("c",): 2}, 1),
        ({}, None),
    ],
)
def test_the_place_of_a_path_is_that_of_the_nearest_thing_around_it(
    lines: dict[tuple[str | int, ...], int], line: int | None
) -> None:
    places = {path: ("base.yaml", number) for path, number in lines.items()}
    file = "base.yaml" if lines else "sweep.yaml"
    assert Document({}, "sweep.yaml", places).place_of(("a", "b")) == (file, line)
