"""The frame of the command line: help without torch, one message an error, the documented exit codes."""

import contextlib
import dataclasses
import errno
import json
import os
import resource
import signal
import subprocess
import sys

import psutil
import pytest

from tests.analysis.synthetic import BASE_ID, trial, write_run
from zbench import __version__
from zbench.cli import console, failure
from zbench.cli import main as cli_main
from zbench.errors import ExitCode, UsageError


def test_help_lists_every_command_and_imports_little_and_no_command_imports_torch():
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


@pytest.mark.parametrize("name", cli_main.COMMANDS)
def test_every_command_has_help(zbench, name):
    output = zbench(name, "--help")
    assert output.code == 0
    assert "Usage: zbench" in output.out


def test_version(zbench):
    assert zbench("--version") == (0, f"zbench {__version__}\n", "")


def test_what_fails_after_the_document_adds_no_second_one(capsys):
    console.reset()
    console.document({"runs": []})
    with pytest.raises(SystemExit), failure.shown_to_the_user(["list", "--json"]):
        raise UsageError("too late")
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"] == []
    assert err == "error: too late\n"
    console.reset()
    with pytest.raises(SystemExit), failure.shown_to_the_user(["list", "--json"]):
        raise UsageError("at once")
    error = {"kind": "UsageError", "message": "at once"}
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "exit_code": 2, "error": error}


def test_a_command_is_loud_and_in_colour_until_its_flags_are_read(zbench):
    assert not any(dataclasses.astuple(console.State()))
    zbench("list")
    assert not any(dataclasses.astuple(console.state))


def test_a_misspelt_command_names_the_nearest_one(zbench):
    code, text, message = zbench("swep", "file")
    assert (code, text) == (ExitCode.USAGE, "")
    assert "Did you mean 'sweep'" in message


def test_no_arguments_show_the_help_and_are_a_usage_error(zbench):
    output = zbench()
    assert output.code == ExitCode.USAGE
    assert "sweep" in output.out + output.err


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["sweep", "--nonsense"], "(see `zbench sweep --help`)"),
        (["sweep", "x.yaml", "--seed", "-1"], "(see `zbench sweep --help`)"),
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
        (OSError(errno.ENAMETOOLONG, "", "x" * 300), 2, f"file name too long: {'x' * 300}"),
        (
            ZeroDivisionError("division"),
            70,
            "internal error: ZeroDivisionError: division; the traceback is in",
        ),
    ],
)
def test_errors_become_a_message_and_their_exit_code(zbench, monkeypatch, error, code, words):
    Failing(monkeypatch, error)
    output = zbench("list")
    assert output.code == code
    assert words in output.err
    assert "Traceback" not in output.err
    assert output.out == ""


def following(name: str) -> ValueError:
    """Return an error with a lack of memory as its `__cause__` or `__context__`."""
    error = ValueError("cannot read the file")
    setattr(error, name, MemoryError())
    return error


NO_MEMORY = "out of memory: free some memory, or raise the limit (ulimit -v); finished repeats are on disk"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), NO_MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), NO_MEMORY),
        (following("__cause__"), NO_MEMORY),
        (following("__context__"), NO_MEMORY),
        (ImportError("libfast.so: failed to map segment from shared object"), NO_MEMORY),
        (OSError(errno.EMFILE, "Too many open files"), "too many open files: close some files, or raise"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on the disk"),
    ],
    ids=["memory", "enomem", "cause", "context", "import", "descriptors", "disk"],
)
def test_what_the_machine_lacks_is_one_message_with_the_remedy(zbench, monkeypatch, tmp_path, error, words):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Failing(monkeypatch, error)
    output = zbench("list")
    assert (output.code, output.out) == (2, "")
    assert words in output.err
    assert "--resume" in output.err
    assert not list(tmp_path.glob("zbench-traceback-*"))


def test_an_import_that_fails_otherwise_lacks_no_memory(zbench, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Failing(monkeypatch, ImportError("cannot import name 'fast'"))
    assert "out of memory" not in zbench("list").err


@pytest.mark.parametrize("megabytes", [100, 200, 250, 300])
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


def test_a_message_that_cannot_be_printed_as_usual_is_printed_plainly(zbench, monkeypatch):
    def no_memory(*_: object) -> None:
        raise MemoryError

    Failing(monkeypatch, MemoryError())
    written: list[tuple[int, bytes]] = []
    with monkeypatch.context() as patches:
        patches.setattr("zbench.cli.console.error", no_memory)
        patches.setattr("os.write", lambda *call: written.append(call))
        assert zbench("list").code == 2
    (text,) = (text for descriptor, text in written if descriptor == 2)
    assert text.startswith(f"error: {NO_MEMORY}".encode())


def test_a_traceback_that_cannot_be_kept_is_no_second_failure(zbench, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Failing(monkeypatch, ZeroDivisionError("division"))
    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    assert "internal error: ZeroDivisionError: division; -v shows the traceback" in zbench("list").err
    assert "Traceback" in zbench("list", "-qv").err


def test_internal_error_leaves_its_traceback_in_a_file(zbench, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Failing(monkeypatch, ZeroDivisionError("division"))
    output = zbench("list")
    (file,) = tmp_path.glob("zbench-traceback-*.txt")
    assert str(file) in output.err
    assert "ZeroDivisionError: division" in file.read_text()


@pytest.mark.parametrize("command", ["schema", "plan sweep.yaml"])
def test_reader_that_leaves_early_is_no_error(sweep_file, command):
    script = f"{sys.executable} -m zbench.cli.main {command} | true; echo ${{PIPESTATUS[0]}}"
    words = ["bash", "-c", script]
    done = subprocess.run(words, cwd=sweep_file.parent, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


@pytest.mark.parametrize(("room", "is_refused"), [(100 << 20, True), (1 << 30, False)])
def test_numpy_is_imported_only_where_limited_memory_has_room_for_it(monkeypatch, room, is_refused):
    limit = psutil.Process().memory_info().vms + room
    monkeypatch.setattr(failure.resource, "getrlimit", lambda _: (limit, limit))
    guard = failure.RoomForBlas()
    assert guard.find_spec("json") is None
    with pytest.raises(MemoryError) if is_refused else contextlib.nullcontext():
        guard.find_spec("numpy")
    monkeypatch.setattr(failure.resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert guard.find_spec("numpy") is None


def end_twice(number: int) -> None:
    """Get a signal, and once more while the command ends."""
    with failure.as_interruption():
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "leaves"), [(signal.SIGTERM, 0), (signal.SIGHUP, 1)])
def test_a_signal_interrupts_once_and_a_terminal_that_hung_up_is_left(monkeypatch, number, leaves):
    left = []
    monkeypatch.setattr(failure, "_leave_terminal", lambda: left.append(number))
    before = signal.getsignal(number)
    with pytest.raises(failure.TerminatedError, match=f"ended by {number.name}"):
        end_twice(number)
    assert len(left) == leaves
    assert signal.getsignal(number) is before
