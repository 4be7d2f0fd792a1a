"""What all specification models share: frozen, closed to unknown keys, sizes read from text."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from zbench.units import parse_bytes, parse_count, parse_duration, parse_rate, parse_share


class SpecModel(BaseModel):
    """A frozen part of what was asked; an unknown key or a value of another type is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _not_boolean(value: object) -> object:
    """Refuse `true` where a number stands among the choices: Python holds True equal to 1."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


def _written(example: str, **limit: int) -> WithJsonSchema:
    """Return the JSON Schema of a number that may also be written as text such as `512Mi`."""
    number = {"type": "number"} | limit
    return WithJsonSchema(
        {"anyOf": [number, {"type": "string", "pattern": r"^\s*[+]?[0-9]", "examples": [example]}]}
    )


ElementCount = Annotated[int, BeforeValidator(parse_count), Field(ge=1), _written("5e8", minimum=1)]
ElementThreshold = Annotated[int, BeforeValidator(parse_count), Field(ge=0), _written("10_000", minimum=0)]
ByteCount = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1), _written("2Gi", minimum=1)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0), _written("120s", exclusiveMinimum=0)]
Rate = Annotated[float, BeforeValidator(parse_rate), Field(gt=0), _written("3.35T", exclusiveMinimum=0)]
Share = Annotated[float, BeforeValidator(parse_share), _written("5%", exclusiveMinimum=0)]
NotBoolean = BeforeValidator(_not_boolean)
