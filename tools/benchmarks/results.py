"""What the benchmarks share: their arguments, progress, tables in Markdown, and their results on disk."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zbench.record.environment import machine_facts, software_facts


def parser(about: str | None, *, must_write: bool = False) -> argparse.ArgumentParser:
    """Return a benchmark's argument parser, with `--out`; about: the docstring of the benchmark."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "file to write, without its ending (.json and .md)"
    parser.add_argument("--out", type=Path, required=must_write, help=text)
    return parser


def say(text: object) -> None:
    """Print progress on stderr."""
    print(text, file=sys.stderr, flush=True)


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
    machine = machine_facts()
    versions = {**software_facts(), **(software or {})}
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine, "software": versions, **document}
    draft = out.with_suffix(".new")
    draft.write_text(json.dumps(whole, indent=1) + "\n")
    draft.replace(out.with_suffix(".json"))  # whole or not at all: a long measurement goes on from it
    cores = f"{machine['cores']} cores ({', '.join(machine['isa'])})"
    here = f"{machine['cpu']}, {cores}, {machine['memory_gib']} GiB"
    known = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    out.with_suffix(".md").write_text(f"{text.rstrip()}\n\nOn {here}; {known}.\n")


def earlier(out: Path, key: str) -> list[dict[str, Any]]:
    """Return the findings that an interrupted measurement has written; none where it has not begun."""
    file = out.with_suffix(".json")
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return list(known.get(key, []))
