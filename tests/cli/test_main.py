"""The frame of the command line: help without torch, one message an error, the documented exit codes."""

import errno
import subprocess
import sys

import pytest

from tests.analysis.synthetic import BASE_ID, trial, write_run
from zbench import __version__
from zbench.cli import main as cli_main
from zbench.errors import ExitCode, UsageError


def test_help_imports_little_and_no_command_imports_torch():
    code = (
        "import sys, zbench.cli.main as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "loaded = {'torch', 'pydantic', 'numpy', 'optuna', 'scipy', 'ruamel'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "m.load_command('plan')\n"
        "assert 'numpy' not in sys.modules\n"
        "for name in m.COMMANDS: m.load_command(name)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in cli_main.COMMANDS:
        assert name in done.stdout


def test_version(zbench):
    assert zbench("--version") == (0, f"zbench {__version__}\n", "")


def test_a_misspelt_command_names_the_nearest_one(zbench):
    code, text, message = zbench("swep", "file")
    assert (code, text) == (ExitCode.USAGE, "")
    assert "Did you mean 'sweep'" in message


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["sweep", "--nonsense"], "(see `zbench sweep --help`)"),
        (["sweep"], "try `zbench sweep quickstart`"),
    ],
)
def test_wrong_use_is_one_message_and_one_document(zbench, arguments, remedy):
    output = zbench(*arguments, "--json")
    assert output.err.count("error:") == 1
    assert remedy in output.err
    document = output.document
    assert (document["schema_version"], document["exit_code"]) == (1, ExitCode.USAGE)
    assert document["trials"] == []
    assert document["run_id"] is None
    assert document["error"]["message"]


class Failing:
    """A command that fails in a given way."""

    def __init__(self, monkeypatch, error: BaseException) -> None:
        def command() -> None:
            raise error

        monkeypatch.setitem(sys.modules, "zbench.cli.list", self)
        self.command = command


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UsageError("expected a, got b"), 2, "error: expected a, got b"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_become_a_message_and_their_exit_code(zbench, monkeypatch, error, code, words):
    Failing(monkeypatch, error)
    output = zbench("list")
    assert output.code == code
    assert words in output.err
    assert "Traceback" not in output.err
    assert output.out == ""


NO_MEMORY = "out of memory: free some memory, or raise the limit (ulimit -v); finished repeats are on disk"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), NO_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), NO_MEMORY),
        (ImportError("libfast.so: failed to map segment from shared object"), NO_MEMORY),
        (OSError(errno.EMFILE, "Too many open files"), "too many open files: close some files, or raise"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on the disk"),
    ],
    ids=["memory", "enomem", "import", "descriptors", "disk"],
)
def test_what_the_machine_lacks_is_one_message_with_the_remedy(zbench, monkeypatch, tmp_path, error, words):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Failing(monkeypatch, error)
    output = zbench("list")
    assert (output.code, output.out) == (2, "")
    assert words in output.err
    assert "--resume" in output.err
    assert not list(tmp_path.glob("zbench-traceback-*"))


@pytest.mark.parametrize("megabytes", [100, 250, pytest.param(300, marks=pytest.mark.check)])
def test_too_little_memory_for_openblas_ends_the_command(tmp_path, megabytes):
    """Seen: status 1, as for a regression; 130 without an interrupt; a hang that ignores Ctrl-C."""
    write_run(tmp_path / "example" / BASE_ID, trial([0.1, 0.1]) + trial([0.2, 0.2], axes={"zero_stage": 2}))
    limited = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({megabytes} * 10**6,) * 2)\n"
        "from zbench.cli import main; main.main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", limited, "show", "last", "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2 or (megabytes > 100 and done.returncode == 0), (
        done.stderr
    )  # some OpenBLAS fit
    assert (NO_MEMORY in done.stderr) == (done.returncode == 2)


def test_internal_error_leaves_its_traceback_in_a_file(zbench, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Failing(monkeypatch, ZeroDivisionError("division"))
    output = zbench("list")
    (file,) = tmp_path.glob("zbench-traceback-*.txt")
    assert output.code == 70
    assert f"internal error: ZeroDivisionError: division; the traceback is in {file}" in output.err
    assert "Traceback" not in output.err
    assert "ZeroDivisionError: division" in file.read_text()


@pytest.mark.parametrize("command", ["schema", "plan sweep.yaml"])
def test_reader_that_leaves_early_is_no_error(sweep_file, command):
    script = f"{sys.executable} -m zbench.cli.main {command} | true; echo ${{PIPESTATUS[0]}}"
    words = ["bash", "-c", script]
    done = subprocess.run(words, cwd=sweep_file.parent, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")
