"""The pages of the reference, made by libraries: commands by Typer, keys of a sweep file by jsonschema2md."""

import re

from jsonschema2md import Parser
from typer.cli import get_docs_for_click
from typer.main import get_command

from zbench.cli.examples import EXAMPLES
from zbench.cli.main import COMMANDS, app, load_command
from zbench.errors import EXIT_CODES
from zbench.spec.sweep import sweep_schema

_COMMANDS = """# Commands

stdout carries the result only; progress and warnings go to stderr. `--json` prints one document, on failure
too. `NO_COLOR`, `COLUMNS` and a missing terminal are honoured.
"""
_KEYS = """
A sweep file is YAML, TOML or JSON. An unknown key is an error that names the nearest known one. `zbench
schema` prints the JSON Schema that this page is made from, for editors. Sizes and counts may be written as
`512Mi`, `5e8` or `500_000_000`, durations as `120s` or `20min`. `axes` takes any key of `workload`, `run`
or `engine`, by its short name or in full (`optimizer.lr`, `engine.zero_stage`), with a list of values, or a
range for a search.

## Properties
"""
_PATTERN_TESTER = re.compile(r" \(\[Test\]\([^)]*\)\)")


class _Parser(Parser):
    tab_size = 4  # mkdocs takes a list for one below another only from four spaces on


def commands_page() -> str:
    """Return the page of all commands, with their options, defaults and examples, and the exit codes."""
    context = get_command(app).make_context("zbench", ["plan"], resilient_parsing=True)
    parts = [_COMMANDS]
    for name in COMMANDS:
        command = load_command(name)
        lines = [f"{line}  # {what}" for line, what in EXAMPLES[name]]
        command.epilog = "\n".join(["**Examples**:\n\n```sh", *lines, "```"])
        parts.append(get_docs_for_click(obj=command, ctx=context, name=name, indent=1, call_prefix="zbench"))
    rows = [f"| {int(code)} | {text} |" for code, text in EXIT_CODES.items()]
    return "\n".join([*parts, "## Exit codes\n", "| code | meaning |", "| ---: | --- |", *rows, ""])


def keys_page() -> str:
    """Return the page of all keys of a sweep file."""
    schema = sweep_schema() | {"title": "Keys of a sweep file"}
    del schema["properties"]["axes"]["properties"]  # the keys of the other sections once more
    for definition in (schema, *schema["$defs"].values()):
        for key in definition.get("properties", {}).values():
            if isinstance(key.get("default"), dict):  # what its own keys say
                del key["default"]
    text = "".join(_Parser().parse_schema(schema)).replace("\n## Properties\n", _KEYS)
    return _PATTERN_TESTER.sub("", text)
