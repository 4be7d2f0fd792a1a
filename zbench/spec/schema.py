"""The JSON Schema of the sweep file: what `zbench schema` prints and editors complete from."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from zbench.spec.keys import SECTIONS, known_paths, nested_model, short_name
from zbench.spec.metrics import METRICS
from zbench.spec.sweep import SweepSpec

_DIALECT = GenerateJsonSchema.schema_dialect
_ID = "urn:zbench:sweep-file:1"


def sweep_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema 2020-12) with a description for every key, axes named for completion."""
    schema = _untitled(SweepSpec.model_json_schema())
    properties = schema["properties"]
    axis_forms = properties["axes"]["additionalProperties"]
    schema["$defs"]["AxisValues"] = axis_forms
    properties["axes"]["additionalProperties"] = {"$ref": "#/$defs/AxisValues"}
    properties["axes"]["properties"] = {
        short_name(path): {"description": _description(path), "$ref": "#/$defs/AxisValues"}
        for path in known_paths()
    }
    objective = schema["$defs"]["ObjectiveSpec"]["properties"]
    objective["subject_to"] |= {
        "additionalProperties": False,
        "properties": {
            name: {"type": "string", "pattern": "^(<=|>=|==|<|>)", "description": metric.description}
            for name, metric in METRICS.items()
        },
    }
    return {"$schema": _DIALECT, "$id": _ID, "title": "zbench sweep file", **schema}


def _description(path: tuple[str, ...]) -> str:
    model = SECTIONS[path[0]]
    for part in path[1:-1]:
        model = nested_model(model.model_fields[part].annotation) or model  # type: ignore[assignment]
    return f"{'.'.join(path)}: {model.model_fields[path[-1]].description}"


def _untitled(value: Any) -> Any:
    """Return a schema without the titles that only repeat the keys."""
    if isinstance(value, dict):
        return {
            key: _untitled(inner)
            for key, inner in value.items()
            if not (key == "title" and isinstance(inner, str))
        }
    return [_untitled(inner) for inner in value] if isinstance(value, list) else value
