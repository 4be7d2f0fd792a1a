"""A name that no file can have is a mistake of the user, wherever it is asked for."""

import pytest

from zbench.cli.failure import shown_to_the_user


def test_too_long_a_name_gets_one_message_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 300
    with pytest.raises(SystemExit) as ended, shown_to_the_user(["sweep", name]), open(name):
        pass
    assert ended.value.code == 2
    assert f"no file can have so long a name: {name}" in capsys.readouterr().err
