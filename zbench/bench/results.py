"""A benchmark's result: a table in Markdown, and beside it every sample with machine and versions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.record.environment import machine_facts, software_facts


def write(
    out: Path, text: str, document: Mapping[str, Any], *, software: Mapping[str, str] | None = None
) -> None:
    """Write `out`.md and `out`.json; `software`: versions that this environment does not know."""
    machine, versions = machine_facts(), {**software_facts(), **(software or {})}
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine, "software": versions, **document}
    out.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
    cores = f"{machine['cores']} cores ({', '.join(machine['isa'])})"
    here = f"{machine['cpu']}, {cores}, {machine['memory_gib']} GiB"
    known = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    out.with_suffix(".md").write_text(f"{text.rstrip()}\n\nOn {here}; {known}.\n")
