"""Keys of a sweep file as paths: the models that check them, and what an override may name."""

from typing import Any

import pytest

from zbench.spec.keys import assign, resolve_key


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
