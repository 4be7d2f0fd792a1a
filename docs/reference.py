"""The pages of the reference, made from the code: commands from the Typer app, keys from the schema."""

import json
from typing import Any

from typer.main import get_command

from zbench.cli.examples import EXAMPLES
from zbench.cli.main import COMMANDS, app, load_command
from zbench.errors import EXIT_CODES
from zbench.spec.sweep import sweep_schema

_SECTIONS = ("workload", "run", "engine", "axes", "search", "objective", "verify")


def commands_page() -> str:
    """Return the page of all commands, with their options, defaults and examples, and the exit codes."""
    parts = [
        "# Commands",
        "stdout carries the result only; progress and warnings go to stderr. `--json` prints one document, on"
        " failure too. `NO_COLOR`, `COLUMNS` and a missing terminal are honoured.",
    ]
    root = get_command(app)
    context = root.make_context("zbench", ["plan"], resilient_parsing=True)
    for name in COMMANDS:
        parts += _command(name, load_command(name), context)
    rows = [f"| {int(code)} | {text} |" for code, text in EXIT_CODES.items()]
    parts += ["## Exit codes", "\n".join(["| code | meaning |", "| ---: | --- |", *rows])]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any, parent: Any) -> list[str]:
    context = type(parent)(command, parent=parent, info_name=name)
    usage = " ".join([f"zbench {name}", *command.collect_usage_pieces(context)])
    options = [_option(param, context) for param in command.get_params(context)]
    lines = [f"{line}  # {what}" for line, what in EXAMPLES.get(name, ())]
    return [
        f"## {name}",
        _cell_free(command.help or ""),
        f"```text\n{usage}\n```",
        "\n".join(["| option | default | meaning |", "| --- | --- | --- |", *options]),
        "Examples:\n\n```sh\n" + "\n".join(lines) + "\n```" if lines else "",
    ]


def _option(param: Any, context: Any) -> str:
    is_option = param.opts[0].startswith("-")
    names = [f"`{text}`" for text in param.opts] if is_option else [f"`{param.metavar}`"]
    takes = f" `{param.metavar}`" if param.metavar and is_option else ""
    given = param.get_default(context, call=False)
    shown = "" if given in (None, "", False) or given == [] or param.is_eager else f"`{given}`"
    text = getattr(param, "help", "") or ""
    variable = getattr(param, "envvar", None)
    return f"| {', '.join(names)}{takes} | {shown} | {_cell(text)}{f' (`{variable}`)' if variable else ''} |"


def keys_page() -> str:
    """Return the page of all keys of a sweep file."""
    schema = sweep_schema()
    parts = [
        "# Keys of a sweep file",
        "A sweep file is YAML, TOML or JSON. An unknown key is an error that names the nearest known one."
        " `zbench schema` prints the JSON Schema that this page is made from, for editors. Sizes and counts"
        " may be written as `512Mi`, `5e8` or `500_000_000`, durations as `120s` or `20min`.",
        "## Top level",
        _table(schema["properties"], schema),
    ]
    for name in _SECTIONS:
        model = _resolved(schema["properties"][name], schema)
        parts += [f"## {name}", _cell_free(model.get("description", ""))]
        if name == "axes":
            parts.append(
                "Any key of `workload`, `run` or `engine`, by its short name or in full"
                " (`optimizer.lr`, `engine.zero_stage`), with a list of values, or a range for a search."
            )
        elif model.get("properties"):
            parts.append(_table(model["properties"], schema))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(properties: dict[str, Any], schema: dict[str, Any]) -> str:
    rows = [
        f"| `{key}` | {_values(value, schema)} | {_default(value)} | {_cell(value.get('description', ''))} |"
        for key, value in _flat(properties, schema)
    ]
    return "\n".join(["| key | values | default | meaning |", "| --- | --- | --- | --- |", *rows])


def _flat(properties: dict[str, Any], schema: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return every key, those of blocks with their dotted names."""
    found = []
    for key, value in properties.items():
        found.append((f"{prefix}{key}", value))
        inner = _resolved(value, schema).get("properties")
        if inner and (prefix or key not in _SECTIONS) and f"{prefix}{key}".count(".") < 2:
            found += _flat(inner, schema, f"{prefix}{key}.")
    return found


def _resolved(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the definition that a schema refers to, also where it may be null."""
    for option in (value, *value.get("anyOf", ()), *value.get("allOf", ())):
        if "$ref" in option:
            target: dict[str, Any] = schema["$defs"][option["$ref"].rsplit("/", 1)[-1]]
            return target
    return value


def _values(value: dict[str, Any], schema: dict[str, Any]) -> str:
    if "enum" in value:
        return ", ".join(f"`{json.dumps(item).strip(chr(34))}`" for item in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if "anyOf" in value:
        options = [_values(option, schema) for option in value["anyOf"]]
        return " or ".join(dict.fromkeys(option for option in options if option))
    if "$ref" in value or "allOf" in value:
        found = _resolved(value, schema)
        return "a block" if found.get("properties") else _values(found, schema) if found is not value else ""
    if value.get("type") == "array":
        return f"list of {_values(value.get('items', {}), schema) or 'values'}"
    bounds = [f"{sign} {value[key]}" for key, sign in _BOUNDS.items() if key in value]
    return " ".join([str(value.get("type", "")), *bounds]).strip()


_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _default(value: dict[str, Any]) -> str:
    given = value.get("default")
    is_empty = given is None or isinstance(given, dict) or given == []
    return "" if is_empty else _cell(f"`{json.dumps(given)}`")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def _cell_free(text: str) -> str:
    return text.replace("<", "&lt;").strip()
