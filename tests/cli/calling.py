"""The command line, called in this process."""

import pytest

from zbench.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run a command; return its exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err
