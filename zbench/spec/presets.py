"""Sizes of the built-in models, as numbers. The workload builds from these; reading a sweep file checks
them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from zbench.errors import UsageError
from zbench.spec.suggest import nearest


@dataclass(frozen=True, slots=True)
class GptShape:
    """Sizes of `gpt`; `options` overrides any of them. Parameter counts are in the presets' names below."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 256
    tied_head: bool = False


@dataclass(frozen=True, slots=True)
class MlpShape:
    """Sizes of `mlp`; `options` overrides any of them."""

    layers: int = 3
    hidden: int = 256
    vocabulary: int = 256


GPT_PRESETS: dict[str, GptShape] = {
    "nano": GptShape(layers=3, width=128, heads=4),  # 0.7 M
    "micro": GptShape(layers=4, width=256, heads=8),  # 3.3 M
    "tiny": GptShape(layers=6, width=512, heads=8),  # 19 M
    "mini": GptShape(layers=8, width=640, heads=10),  # 40 M
    "small": GptShape(layers=12, width=768, heads=12),  # 85 M
    "medium": GptShape(layers=24, width=1024, heads=16),  # 303 M
    "large": GptShape(layers=36, width=1280, heads=20),  # 709 M
    "xl": GptShape(layers=48, width=1600, heads=25),  # 1.5 G
}
MLP_PRESETS: dict[str, MlpShape] = {"nano": MlpShape(), "small": MlpShape(hidden=2048)}

_Shape = TypeVar("_Shape", GptShape, MlpShape)


def gpt_shape(preset: str | None, options: Mapping[str, Any]) -> GptShape:
    """Return the sizes of a `gpt` workload; UsageError for an unknown preset or option, or sizes that cannot
    be."""
    shape = _resolve(GPT_PRESETS, preset, options)
    if shape.width % shape.heads:
        raise UsageError(
            f"gpt: width must be a multiple of heads, got width {shape.width} and heads {shape.heads}; "
            "change workload.options"
        )
    return shape


def mlp_shape(preset: str | None, options: Mapping[str, Any]) -> MlpShape:
    """Return the sizes of an `mlp` workload; UsageError for an unknown preset or option."""
    return _resolve(MLP_PRESETS, preset, options)


def _resolve(presets: Mapping[str, _Shape], preset: str | None, options: Mapping[str, Any]) -> _Shape:
    name = preset or "nano"
    if name not in presets:
        raise UsageError(
            f"unknown preset {name!r}{nearest(name, presets)}; expected one of {', '.join(presets)}"
        )
    shape = presets[name]
    known = {field.name: field.type for field in dataclasses.fields(shape)}
    for key, value in options.items():
        if key not in known:
            raise UsageError(
                f"unknown option {key!r}{nearest(key, known)}; expected one of {', '.join(known)}"
            )
        if known[key] is bool and not isinstance(value, bool):
            raise UsageError(f"option {key!r}: expected true or false, got {value!r}")
        if known[key] is int and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"option {key!r}: expected a whole number of at least 1, got {value!r}")
    return dataclasses.replace(shape, **options)
