"""Keys of a sweep file as paths: the models that check them, and what an override may name."""

import pytest

from zbench.spec.document import Document
from zbench.spec.keys import holder, known_paths


def test_the_holder_of_a_path_has_the_field_that_it_names() -> None:
    for path in [*known_paths(), ("engine", "param_groups", "*.bias"), ("engine", "param_groups", "x", "lr")]:
        model = holder(path)
        assert model is not None
        assert path[-1] in model.model_fields, path
    assert holder(("workload", "options", "width")) is None


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ({(): 1, ("a",): 2, ("a", "b"): 3}, 3),
        ({(): 1, ("a",): 2}, 2),
        ({(): 1, ("c",): 2}, 1),
        ({}, None),
    ],
)
def test_the_line_of_a_path_is_that_of_the_nearest_thing_around_it(
    lines: dict[tuple[str | int, ...], int], line: int | None
) -> None:
    assert Document({}, "sweep.yaml", lambda: lines).line_of(("a", "b")) == line
