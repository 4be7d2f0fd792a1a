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
    machine, versions = machine_facts(), {**software_facts(), **(software or {})}
    out.parent.mkdir(parents=True, exist_ok=True)
    whole = {"machine": machine, "software": versions, **document}
    out.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
    cores = f"{machine['cores']} cores ({', '.join(machine['isa'])})"
    here = f"{machine['cpu']}, {cores}, {machine['memory_gib']} GiB"
    known = ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
    out.with_suffix(".md").write_text(f"{text.rstrip()}\n\nOn {here}; {known}.\n")


class Kept:
    """The findings of a long measurement in `out`.jsonl, one line each, so that it can go on later."""

    def __init__(self, out: Path) -> None:
        self._file = out.with_suffix(".jsonl")
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.findings: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, finding: dict[str, Any]) -> None:
        """Keep a finding, on disk before this returns."""
        self.findings.append(finding)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(finding) + "\n")
