"""Reads a sweep file as plain data: YAML 1.2 with the line of every key, TOML or JSON. It runs no code."""

import io
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zbench.errors import SpecError, nearest
from zbench.spec import LISTED, SHIPPED
from zbench.spec.problems import KeyPath, key_text, shown

if TYPE_CHECKING:
    from ruamel.yaml import YAML

MAX_BYTES = 4 << 20
MAX_NODES = 200_000
MAX_DEPTH = 50
_CORE = {f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "map", "seq")}
_TIMESTAMP = "tag:yaml.org,2002:timestamp"


_NO_MAPPING = "expected a mapping of keys such as `workload:` and `axes:`"


@dataclass(frozen=True)
class Document:
    """The data of a file. places: path -> (file, line); the line is None for TOML and JSON."""

    data: Any
    file: str
    places: Mapping[KeyPath, tuple[str, int | None]] = field(default_factory=dict)

    def place_of(self, path: KeyPath) -> tuple[str, int | None]:
        """Return the file and the line of a path, or of the nearest enclosing path that has one."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (self.file, None))


def read_sweep_file(path: Path, keys: Collection[str], extending: tuple[Path, ...] = ()) -> Document:
    """Read a sweep file and merge it over the file that `extends` names (a path relative to this file).

    Mappings are merged key by key, but an axis replaces the base file's axis. `name` is not inherited.
    keys: the keys of a sweep file. extending: the files that extend this one. SpecError if `extends` makes a
    cycle; it shows nothing of an extended file that is no mapping of these keys.
    """
    document = read_named(path, keys) if extending else read_document(path)
    if document.data is None:
        raise SpecError("this file is empty; write `axes:` first, or use `zbench init`", file=document.file)
    if not isinstance(document.data, dict):
        file, line = document.place_of(())
        message = f"{_NO_MAPPING}, got {shown(document.data)}; `zbench init` writes one"
        raise SpecError(message, file=file, line=line)
    if "extends" not in document.data:
        return document
    name = document.data.pop("extends")
    (_, line) = document.place_of(("extends",))
    chain = (*extending, path.resolve())
    target = path.parent / (name if isinstance(name, str) else "")
    if not target.is_file() or target.resolve() in chain:
        message = f"expected the path of a sweep file that does not extend this one, got {shown(name)}"
        raise SpecError(f"{message}; correct it", file=document.file, line=line, key="extends")
    base = read_sweep_file(target, keys, chain)
    base.data.pop("name", None)
    return Document(_merged(base.data, document.data), document.file, {**base.places, **document.places})


def _plain(data: Any, file: str) -> Document:
    """Return data of a format that gives no line numbers."""
    paths: list[tuple[KeyPath, Any]] = [((), data)]
    for path, value in paths:
        paths += [((*path, key), item) for key, item in value.items()] if isinstance(value, dict) else []
    return Document(data, file, {path: (file, None) for path, _ in paths})


def _merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = {**old, **value} if key == "axes" else _merged(old, value)
        merged[key] = value
    return merged


def read_document(path: Path) -> Document:
    """Read a file as its suffix says (.toml, .json, else YAML). SpecError if it cannot be read."""
    read = {".toml": _read_toml, ".json": _read_json}.get(path.suffix, _read_yaml)
    try:
        return read(read_text(path), str(path))
    except RecursionError:
        raise SpecError("nested too deeply; this is no sweep file", file=str(path)) from None
    except SpecError:
        raise
    except ValueError:  # of Python's integers, in JSON and TOML
        raise SpecError("a number has too many digits; this is no sweep file", file=str(path)) from None


def read_named(path: Path, keys: Collection[str] | None = None) -> Document:
    """Read a file that another file names: somebody else may have named it, and shows nothing of its content.

    SpecError if it cannot be read, or is no mapping of `keys`; None: any content is accepted.
    """
    read_text(path)  # its errors show no content
    try:
        document = read_document(path)
    except SpecError as error:
        message = "not YAML, JSON or TOML; correct its syntax (`zbench plan FILE` shows more)"
        raise SpecError(message, file=str(path), line=error.line) from None
    data = document.data
    if keys is None or data is None:
        return document
    if not isinstance(data, dict):
        raise SpecError(f"{_NO_MAPPING}; name another file", file=str(path))
    unknown = next((key for key in data if key not in keys), None)
    if unknown is not None:
        file, line = document.place_of((unknown,))
        message = f"a key is none of {', '.join(sorted(keys))}; correct it, or name another file"
        raise SpecError(message, file=file, line=line)
    return document


def parse_scalar(text: str, place: str) -> Any:
    """Return the value of YAML text such as `1e-3` or `[0, 1]`; None for empty text."""
    try:
        return _read_yaml(text, place).data
    except SpecError as error:
        raise SpecError(error.message, file=place) from None
    except RecursionError:
        raise SpecError("nested too deeply; this is no sweep file", file=place) from None


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file. SpecError if it cannot be read or is larger than MAX_BYTES."""
    if path.is_dir():
        raise SpecError("this is a directory; name a sweep file in it", file=str(path))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        hint = nearest(path, SHIPPED) if str(path) == path.name else ""
        message = f"no such file{hint}; check the path; `zbench init` writes one; {LISTED} needs none"
        raise SpecError(message, file=str(path)) from None
    except OSError as error:
        raise SpecError(f"cannot be read ({error.strerror}); check its permissions", file=str(path)) from None
    if len(content) > MAX_BYTES:
        raise SpecError(f"larger than {MAX_BYTES >> 20} MiB; this is no sweep file", file=str(path))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError("not UTF-8 text; this is no sweep file", file=str(path)) from None
    if "\0" in text:
        raise SpecError("not text (it holds NUL bytes); this is no sweep file", file=str(path))
    return text


def _read_yaml(text: str, file: str) -> Document:
    from ruamel.yaml import YAML  # may be missing in a worker's environment, which reads no YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    loader = YAML(typ="safe", pure=True)
    loader.max_depth = 2 * MAX_DEPTH  # the time to read brackets grows with the square of their depth
    try:
        loader.composer.warn_double_anchors = False  # YAML 1.2 allows an anchor to be redefined
        root = loader.compose(text)
        reader = _YamlReader(loader, file)
        data = None if root is None else reader.value(root, ())
    except MarkedYAMLError as error:
        if "maximum depth" in (error.problem or ""):
            raise RecursionError from None
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not YAML"
        problem = problem.replace("but found another document", "a second document begins")
        line = mark.line + 1 if mark else None
        raise SpecError(f"not YAML: {problem}; correct the syntax", file=file, line=line) from None
    except YAMLError as error:
        raise SpecError(f"not YAML: {str(error).splitlines()[0]}; correct the syntax", file=file) from None
    return Document(data, file, {path: (file, line) for path, line in reader.lines.items()})


class _YamlReader:
    """Converts nodes of ruamel.yaml to plain data of the core types and records their lines."""

    def __init__(self, loader: "YAML", file: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._loader, self._file, self._count = loader, file, 0

    def value(self, node: Any, path: KeyPath) -> Any:
        """Return the data of a node. SpecError for tags, repeated keys and too many or too deep nodes."""
        self._count += 1
        self.lines.setdefault(path, node.start_mark.line + 1)
        if self._count > MAX_NODES or len(path) > MAX_DEPTH:
            self._fail(node, path[:2], "too large after its anchors are expanded; write a smaller file")
        if str(node.tag) == _TIMESTAMP:
            return node.value
        if str(node.tag) not in _CORE:
            self._fail(node, path, f"the tag {node.tag} is not allowed; write a plain value")
        if node.id == "scalar":
            try:
                return self._loader.constructor.construct_object(node)
            except (ValueError, IndexError, KeyError):  # `!!int x`, `!!bool 3`
                self._fail(node, path, f"cannot read {node.value[:40]!r}; quote it if it is text")
        if node.id == "sequence":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._mapping(node, path)

    def _mapping(self, node: Any, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                self._fail(key_node, path, "a key must be a plain word")
            key = key_node.value
            if key == "<<":
                self._fail(key_node, path, "nothing is merged by `<<`; write the keys out, or use `extends`")
            place = (*path, key)
            if key in mapping:
                first = self.lines[place]
                self._fail(
                    key_node, place, f"this key is given twice (first on line {first}); remove one of them"
                )
            self.lines[place] = key_node.start_mark.line + 1
            mapping[key] = self.value(value_node, place)
        return mapping

    def _fail(self, node: Any, path: KeyPath, message: str) -> NoReturn:
        raise SpecError(message, file=self._file, line=node.start_mark.line + 1, key=key_text(path))


def _read_json(text: str, file: str) -> Document:
    def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in pairs:
            if key in mapping:
                raise SpecError("this key is given twice; remove one of them", file=file, key=key)
            mapping[key] = value
        return mapping

    if not text.strip():
        return Document(None, file)
    try:
        return _plain(json.loads(text, object_pairs_hook=unrepeated), file)
    except json.JSONDecodeError as error:
        message = f"not JSON, which has no comments and no trailing commas: {error.msg}; correct the syntax"
        raise SpecError(message, file=file, line=error.lineno) from None


def _read_toml(text: str, file: str) -> Document:
    try:
        return _plain(tomllib.loads(text) or None, file)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"not TOML: {error}; correct the syntax", file=file) from None


def dump_yaml(document: dict[str, Any]) -> str:
    """Return plain data as YAML 1.2: mappings in block style, lists on one line."""
    from ruamel.yaml import YAML

    writer = YAML(typ="rt")
    writer.width = 110
    writer.representer.add_representer(list, _represent_list)
    stream = io.StringIO()
    writer.dump(document, stream)
    return stream.getvalue()


def _represent_list(representer: Any, values: list[Any]) -> Any:
    return representer.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=True)
