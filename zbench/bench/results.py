"""What the benches share: their arguments, tables in Markdown, and their results on disk."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zbench.record.environment import machine_facts, software_facts


def parser(about: str | None, *, must_write: bool = False) -> argparse.ArgumentParser:
    """Return a bench's argument parser, with `--out`; about: the docstring of the bench."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "file to write, without its ending (.json and .md)"
    made.add_argument("--out", type=Path, required=must_write, help=text)
    return made


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


def write(
    out: Path | None, text: str, document: Mapping[str, Any], *, software: Mapping[str, str] | None = None
) -> None:
    """Write `out`.md, and every sample with machine and versions as `out`.json; nothing without `out`.

    software: versions that this environment does not know.
    """
    if out is None:
        return
    machine, versions = machine_facts(), {**software_facts(), **(software or {})}
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine, "software": versions, **document}
    out.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
    cores = f"{machine['cores']} cores ({', '.join(machine['isa'])})"
    here = f"{machine['cpu']}, {cores}, {machine['memory_gib']} GiB"
    known = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    out.with_suffix(".md").write_text(f"{text.rstrip()}\n\nOn {here}; {known}.\n")
