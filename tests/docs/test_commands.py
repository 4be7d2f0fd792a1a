"""Every command of the documentation and of the help is one that works."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.cli.conftest import run, use_fake_workers
from tests.shared_processes import SharedProcesses
from zbench.cli import main as cli
from zbench.cli.examples import EXAMPLES

ROOT = Path(__file__).parents[2]
HEAVY = re.compile(r"zbench (doctor|tune)")
ELSEWHERE = re.compile("postgresql://|--slurm|--paired|zbench bisect")
"""These need a server, a cluster or two revisions to install: here only their form is checked."""


def commands() -> Iterator[str]:
    """Yield every command of the help's examples, and of the documentation's shell blocks."""
    for examples in EXAMPLES.values():
        yield from (line for line, _ in examples)
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.DOTALL):
            yield from (line.split("  #")[0].strip() for line in block.splitlines() if line.strip())
    for line in (ROOT / "README.md").read_text().splitlines():
        if line.startswith("    zbench ") and "..." not in line:
            yield line.split("  #")[0].strip()


QUICK_SWEEP = ["sweep", "quickstart", "--repeats", "1", "-q"]
SMALLER = {
    "stages": {
        "preset: tiny": "options: {layers: 1, width: 32, heads: 2}",
        "zero_stage: [0, 1, 2, 3]": "zero_stage: [0, 3]",
    },
    "quickstart": {"zero_stage: [0, 1, 2]": "zero_stage: [0, 1]", "[1e5, 5e6]": "[5e6]"},
    "peers": {"ddp, zero_redundancy, fsdp2, deepspeed]": "ddp]", "repeats: 5": "repeats: 2"},
}
"""What tests run of shipped sweeps."""

EVERY = sorted(set(commands()))
SOAK = [pytest.mark.soak, pytest.mark.timeout(1800)]


def tiers() -> Iterator[ParameterSet]:
    """Yield each command that runs here: the shortest of each name by `make test`, others by `make check`."""
    tried = {"estimate", "publish"}  # tests/cli tries them by `make test`
    for line in sorted(EVERY, key=len):
        if not ELSEWHERE.search(line):
            name = line.split()[1]
            marks = SOAK if HEAVY.match(line) else [pytest.mark.check] if name in tried else []
            tried.add(name)
            yield pytest.param(line, marks=marks)


def test_every_command_has_examples_of_itself() -> None:
    assert set(EXAMPLES) == set(cli.COMMANDS), "add an example to zbench/cli/examples.py"
    for name, examples in EXAMPLES.items():
        assert examples
        assert all(line.split()[:2] == ["zbench", name] for line, _ in examples)


@pytest.mark.parametrize("line", EVERY)
def test_command_line_is_well_formed(line: str) -> None:
    program, name, *arguments = shlex.split(line)
    assert program == "zbench"
    command = cli.load_command(name)
    command.make_context(name, arguments)


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_shows_examples_and_no_type_of_a_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert "Examples" in out
    assert EXAMPLES[name][0][0].split()[1] in out.split("Examples")[1]
    assert "<bool>" not in out


@pytest.fixture(scope="module")
def with_a_run(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Path:
    """Return a directory with the shipped sweeps and two runs of the quickstart by fake workers."""
    place = tmp_path_factory.mktemp("docs")
    shutil.copytree(ROOT / "sweeps", place / "sweeps")
    for name, changes in SMALLER.items():
        text = (place / "sweeps" / f"{name}.yaml").read_text().replace("../README.md", "README.md")
        for old, new in changes.items():
            assert old in text, f"{name}.yaml has no {old} any more"
            text = text.replace(old, new)
        (place / name).write_text(text)  # a file of this name goes before the shipped one
    shutil.copy(ROOT / "README.md", place)
    (place / "my_module.py").write_text("def make_model(): ...\n")
    (place / "ds_config.json").write_text('{"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}')
    with pytest.MonkeyPatch.context() as patch:
        use_fake_workers(patch, shared_processes)
        patch.chdir(place)
        for words in (QUICK_SWEEP, ["compare", "last", "--save-baseline", "main", "-q"], QUICK_SWEEP):
            with pytest.raises(SystemExit) as ended:
                cli.main(words)
            assert ended.value.code == 0
    return place


@pytest.fixture
def here(
    with_a_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared_processes: SharedProcesses,
) -> Path:
    """Return a copy of the directory with two runs; it is the current one, and its workers are fakes."""
    use_fake_workers(monkeypatch, shared_processes)
    place = shutil.copytree(with_a_run, tmp_path / "here")
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # `zbench prune` looks there
    return place


@pytest.mark.parametrize("line", [*tiers()])
def test_command_works(line: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if line.startswith("zbench export"):
        (here / "ds_config.json").unlink()
    code, out, err = run(capsys, *shlex.split(line)[1:])
    assert code in (0, 3), err  # 3: a comparison of two short runs does not decide
    is_silent = line.startswith("zbench tag") or "--output" in line
    assert out.strip() or is_silent or "results in" in err or "baseline" in err


def test_the_quickstart_pages_commands_work_in_an_empty_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared_processes: SharedProcesses,
    capsys: pytest.CaptureFixture[str],
) -> None:
    use_fake_workers(monkeypatch, shared_processes)
    monkeypatch.chdir(tmp_path)
    for block in re.findall(
        r"```sh\n(.*?)```", (ROOT / "docs" / "quickstart.md").read_text(), flags=re.DOTALL
    ):
        for line in block.strip().splitlines():
            if not HEAVY.match(line):
                code, _, err = run(capsys, *shlex.split(line)[1:])
                assert code == 0, f"{line}: {err}"
    assert (tmp_path / "report.html").is_file()
    assert json.loads((tmp_path / "ds_config.json").read_text())["train_micro_batch_size_per_gpu"]
