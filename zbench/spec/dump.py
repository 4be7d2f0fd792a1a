"""A sweep as YAML that loads back to the same sweep."""

import io
from typing import Any

from ruamel.yaml import YAML

from zbench.spec.sweep import SweepSpec


def sweep_document(sweep: SweepSpec, *, defaults: bool = True) -> dict[str, Any]:
    """Return a sweep as plain JSON values; without `defaults`, only what differs from them."""
    document: dict[str, Any] = sweep.model_dump(mode="json", exclude_defaults=not defaults)
    written = sweep.model_dump(mode="json", include={"axes"}, exclude_defaults=True)
    return document | written


def dump_sweep(sweep: SweepSpec, *, defaults: bool = True) -> str:
    """Return a sweep as YAML text; without `defaults`, only the keys that differ from them."""
    return dump_yaml(sweep_document(sweep, defaults=defaults))


def dump_yaml(document: dict[str, Any]) -> str:
    """Return plain data as YAML 1.2: blocks for mappings, one line for each list of plain values."""
    writer = YAML(typ="rt")
    writer.width = 110
    writer.representer.add_representer(list, _represent_list)
    stream = io.StringIO()
    writer.dump(document, stream)
    return stream.getvalue()


def _represent_list(representer: Any, values: list[Any]) -> Any:
    return representer.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
