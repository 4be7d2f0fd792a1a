"""The rules of the layers: imports point downward, torch stays where it is needed, and files are subjects."""

import ast
import graphlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from zbench.spec.environments import WORKER_NEEDS

PACKAGE = Path(__file__).parents[1] / "zbench"
FILES = sorted(PACKAGE.rglob("*.py"))
LEAVES = {
    "zbench",
    *(
        f"zbench.{n}"
        for n in (
            "_inside",
            "_nudge",
            "children",
            "clocks",
            "cores",
            "errors",
            "git",
            "gpus",
            "masking",
            "private",
            "scratch",
            "topology",
            "units",
        )
    ),
}
TORCHS_SIGNATURE = "engine/adam/optimizer.py"  # CpuAdam takes what torch.optim.AdamW takes

MAY_IMPORT = {  # package -> the packages below it
    "_inside": set(),
    "_nudge": set(),
    "children": set(),
    "clocks": set(),
    "cores": set(),
    "errors": set(),
    "units": set(),
    "git": set(),
    "gpus": set(),
    "masking": set(),
    "private": set(),
    "scratch": set(),
    "topology": set(),
    "spec": set(),
    "record": {"spec"},
    "engine": {"spec"},
    "peers": {"spec", "engine"},
    "workloads": {"spec"},
    "measure": {"spec", "record", "engine"},
    "verify": {"spec", "record", "engine", "workloads"},
    "job": {"spec", "record"},
    "worker": {"spec", "record", "job", "engine", "peers", "workloads", "measure", "verify"},
    "estimate": {"spec", "record", "job", "engine", "peers", "workloads", "measure", "worker"},
    "launch": {"spec", "record", "job"},
    "analysis": {"spec", "record"},
    "tune": {"spec", "record", "job", "launch", "analysis", "estimate"},
    "report": {"spec", "record", "analysis", "launch"},
    "app": {"spec", "record", "launch", "analysis", "tune", "report", "estimate"},
    "results": {"spec", "record", "analysis", "report", "estimate", "app"},  # the Python face
    "cli": {"spec", "record", "launch", "analysis", "tune", "report", "estimate", "app"},
    # what users inherit; nothing imports it
    "testing": {"spec", "record", "engine", "worker", "workloads", "measure", "launch", "analysis", "report"},
}
ASSEMBLY = "engine/assembly/"  # the top of the engine's own layers
TORCH_FREE = {"spec", "record", "job", "analysis", "report"}
TORCH_FREE_ON_IMPORT = {"app", "cli", "launch", "tune"}


def package_of(path: Path) -> str:
    """Return the package of a file, or the name of a leaf module."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def is_type_checking(node: ast.AST) -> bool:
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


@cache
def imports(path: Path, *, lazy: bool = True) -> tuple[str, ...]:
    """Return every imported module in full; without `lazy`, only what importing the file itself imports."""
    return tuple(_imports(path, lazy))


def _imports(path: Path, lazy: bool) -> Iterator[str]:
    pending: list[ast.AST] = [tree(path)]
    while pending:
        node = pending.pop()
        if is_type_checking(node) or (not lazy and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if is_module(inner) else str(node.module)
        pending += ast.iter_child_nodes(node)


@cache
def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def own(path: Path, *, lazy: bool = True) -> Iterator[str]:
    return (
        name for name in imports(path, lazy=lazy) if name.split(".")[0] == "zbench" and name not in LEAVES
    )


def outside(path: Path, *, lazy: bool = True) -> set[str]:
    return {name.split(".")[0] for name in imports(path, lazy=lazy)} - {"zbench"}


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def files_of(*packages: str) -> list[Path]:
    return [path for path in FILES if package_of(path) in packages]


def test_every_package_has_its_place() -> None:
    packages = {package_of(path) for path in FILES} - {"__init__", "__main__"}
    assert packages <= set(MAY_IMPORT)


def test_imports_point_downward() -> None:
    for path in FILES:
        if (here := package_of(path)) not in ("__init__", "__main__"):
            packages = {name.split(".")[1] for name in own(path)} - {here, "_native"}
            assert packages <= MAY_IMPORT[here], f"{name_of(path)} imports upward"


def test_no_files_import_one_another_in_a_circle() -> None:
    """Not even where one of the imports is inside a function."""
    graph = {module_name(path): {*own(path)} - {module_name(path)} for path in FILES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_only_assembly_knows_the_specification() -> None:
    for path in files_of("engine"):
        above = ("zbench.spec", "zbench.engine.assembly")
        imported = {name for name in own(path) if name.startswith(above)}
        may = name_of(path).startswith(ASSEMBLY) or name_of(path) == "engine/__init__.py"
        assert may or not imported, name_of(path)


def test_commands_import_neither_engine_nor_worker() -> None:
    not_ours = {"engine", "worker", "workloads", "verify", "measure", "peers", "tune"}
    for path in files_of("app", "cli"):
        at_start = {name.split(".")[1] for name in own(path, lazy=False)}
        assert not at_start & not_ours, name_of(path)
        assert not outside(path, lazy=False) & {"torch", "optuna", "scipy", "numpy"}, name_of(path)


def test_torch_and_optuna_stay_in_their_packages() -> None:
    for path in FILES:
        here = package_of(path)
        if here in TORCH_FREE:
            assert "torch" not in outside(path), name_of(path)
        if here in TORCH_FREE_ON_IMPORT:
            assert "torch" not in outside(path, lazy=False), name_of(path)
        if here != "tune":
            assert "optuna" not in outside(path), name_of(path)


def test_a_worker_imports_no_package_that_another_environment_may_lack() -> None:
    """Those that every environment needs, and torch with numpy: a rank reads no YAML."""
    pending = {"zbench.worker.rank", "zbench.worker.script"}
    packages = set[str]()
    seen = {"zbench._native"}
    while pending := pending - seen:
        seen.add(name := pending.pop())
        place = PACKAGE.parent.joinpath(*name.split("."))
        path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        packages |= outside(path, lazy=False)
        pending |= {*own(path, lazy=False)}
    assert packages - sys.stdlib_module_names <= {"torch", "numpy", "pydantic_core", *WORKER_NEEDS}


def test_files_are_read_without_code_of_the_file() -> None:
    """A pickle can call any function: no reader of stored files unpickles, and torch reads tensors alone."""
    for path in files_of("record", "verify", "analysis", "report", "app", "cli", "results"):
        assert not outside(path) & {"pickle", "cloudpickle", "shelve", "marshal"}, name_of(path)
    for path in FILES:
        if name_of(path).startswith("engine/checkpoint/"):
            assert not outside(path) & {"pickle", "cloudpickle", "shelve", "marshal"}, name_of(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in ast.unparse(node), f"{name_of(path)}:{node.lineno}"


STARTERS = {  # files that start processes; each has them end with the process that started them
    "estimate/client.py", "launch/cluster/slurm_steps.py", "launch/process/client.py",
    "launch/process/sweeps.py", "report/site/publish.py", "worker/script.py",
}  # fmt: skip


def test_processes_are_started_where_their_end_is_seen_to() -> None:
    for path in FILES:
        names = {node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)}
        names |= {node.id for node in ast.walk(tree(path)) if isinstance(node, ast.Name)}
        starts = names & {"Popen", "ProcessPoolExecutor", "Pool", "Process"}
        if "subprocess" in outside(path) or "ProcessPoolExecutor" in names:
            assert not starts - {"Process"} or name_of(path) in STARTERS, name_of(path)


def test_files_functions_and_constructors_stay_small() -> None:
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 400, f"{name_of(path)} is longer than 400 lines"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                check_size(path, node)


def check_size(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    # A Typer command's signature is its documentation: only its body counts.
    first = node.body[0].lineno if node.name == "command" else node.lineno
    length = (node.end_lineno or node.lineno) - first + 1
    assert length <= 60, f"{name_of(path)}:{node.lineno}: {node.name} has {length} lines"
    if node.name == "__init__" and name_of(path) != TORCHS_SIGNATURE:
        arguments = node.args
        count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1
        assert count <= 7, f"{name_of(path)}:{node.lineno}: {count} constructor arguments"


STAGE_TABLE = "engine/assembly/stages.py"


def test_only_the_stage_table_names_a_stage() -> None:
    for path in files_of("engine"):
        named = [node.attr for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
        assert "zero_stage" not in named or name_of(path) == STAGE_TABLE, name_of(path)


def engine_entry(path: Path) -> str:
    """Return the file or folder directly inside engine/ that `path` is or lies in."""
    return path.relative_to(PACKAGE / "engine").parts[0].removesuffix(".py")


def engine_imports() -> dict[str, set[str]]:
    """Return each entry of engine/ with the other entries that its files import."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        if package_of(path) == "engine" and path != PACKAGE / "engine" / "__init__.py":
            inside = {name.split(".")[2] for name in own(path) if name.startswith("zbench.engine.")}
            graph.setdefault(engine_entry(path), set()).update(inside - {engine_entry(path)})
    return graph


def test_entries_of_the_engine_have_9_levels_without_a_cycle() -> None:
    levels: dict[str, int] = {}
    graph = engine_imports()
    for entry in graphlib.TopologicalSorter(graph).static_order():  # raises CycleError
        levels[entry] = 1 + max((levels[below] for below in graph[entry]), default=0)
    assert max(levels.values()) <= 9, levels
    assert len(levels) <= 15, sorted(levels)
