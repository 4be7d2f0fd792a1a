"""`module:callable`, checked without an import: is there such a module, and does its source bind the name?"""

import ast
import importlib.util
import re
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from zbench.spec.suggest import nearest

FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def mistake(name: str, base_dir: Path) -> str | None:
    """Return why `module:callable` cannot be loaded, with the remedy, or None if nothing speaks against it.

    Modules are looked for as trials do: in `base_dir`, the current directory, and what Python imports from.
    """
    base, current = str(base_dir.resolve()), str(Path.cwd())
    module, _, attribute = name.partition(":")
    top, *parts = module.split(".")
    found = PathFinder.find_spec(top, [base, current])
    own = found is not None and found.origin is not None  # a folder without __init__.py may be elsewhere, too
    found = found if own else _installed(top) or found
    for part in parts:
        places = None if found is None else found.submodule_search_locations
        found = PathFinder.find_spec(part, list(places or ()))
        if found is None and not own and _installed(top):
            return None  # an installed package may find its parts in its own way
    if found is None:
        file = module.replace(".", "/") + ".py"
        return (
            f"{name}: no module {module!r} in {base}, the current directory or the installed packages;"
            f" write {file} there, or name the module that has your {attribute}"
        )
    return _unbound(name, attribute.split(".")[0], found)


def _installed(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: a module without a spec, such as __main__
        return None


def _unbound(name: str, wanted: str, found: ModuleSpec) -> str | None:
    """Return that a module's source does not bind a name, or None where it does or may."""
    if found.origin is None or not found.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(found.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # importing it tells the mistake in Python's words
    bound = set(_bound(tree))
    if bound & {wanted, "*", "__getattr__", "globals"}:
        return None
    return f"{name}: {found.origin} has no {wanted!r}{nearest(wanted, sorted(bound))}; correct the name"


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module may bind, and what would bind others unseen."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Store) or node.id == "globals"):
            yield node.id
