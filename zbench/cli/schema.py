"""`zbench schema`: the JSON Schema of the sweep file."""

import json

from zbench.cli import console
from zbench.spec.sweep import sweep_schema


def command() -> None:
    """Print the JSON Schema of the sweep file: every key with its description, for readers and editors."""
    console.result(json.dumps(sweep_schema(), indent=2))
