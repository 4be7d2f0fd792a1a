"""What all specification models share: frozen, closed to unknown keys, sizes read from text."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from zbench.units import parse_bytes, parse_count, parse_duration


class SpecModel(BaseModel):
    """A frozen part of what was asked; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


ElementCount = Annotated[int, BeforeValidator(parse_count), Field(ge=1)]
ByteCount = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
