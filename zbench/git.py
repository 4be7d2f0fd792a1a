"""Calls git without any command that the repository configures.

A repository can come from a stranger, also inside a plain clone: git then runs the programs that the
repository's configuration names, such as `core.fsmonitor` at each `git status`. So every call of git in
zbench is `call`, which turns these programs off: fsmonitor, hooks, pagers, external diffs, signature
programs, transports of a lazy fetch, and the filters that the repository configures. Filters of the user's
own configuration, such as Git LFS, stay. A bare repository that git finds by itself is refused.
"""

import os
import subprocess
from pathlib import Path

from zbench.errors import UsageError, reason_of

OFF = (
    "core.fsmonitor=", "core.hooksPath=/dev/null", "core.pager=cat", "core.sshCommand=false",
    "core.alternateRefsCommand=false", "credential.helper=", "diff.external=false",
    "diff.ignoreSubmodules=dirty",
    "gpg.program=false", "gpg.openpgp.program=false", "gpg.x509.program=false", "gpg.ssh.program=false",
    "gpg.ssh.defaultKeyCommand=false", "log.showSignature=false", "protocol.allow=never",
    "safe.bareRepository=explicit", "uploadpack.packObjectsHook=",
)  # fmt: skip
"""Settings of each call. `false` is the program that does nothing."""

_NO_FETCH = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
_FILTERS = ("config", "--null", "--name-only", "--show-scope", "--get-regexp", r"^filter\.")
_OF_THE_REPOSITORY = ("local", "worktree")
_NO_SUCH_KEY = 1
_FILTER_OFF = {"clean": "", "smudge": "", "process": "", "required": "false"}


def call(
    *arguments: str, folder: Path | None = None, seconds: float | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder`, else here, and return the completed process; UsageError if git is not installed.

    subprocess.TimeoutExpired after so many seconds.
    """
    variables = {**os.environ, **_NO_FETCH}
    variables.pop("GIT_EXTERNAL_DIFF", None)
    listed = _run(_FILTERS, folder, seconds, variables)
    if listed.returncode not in (0, _NO_SUCH_KEY):
        return listed
    return _run(arguments, folder, seconds, variables | _without_filters(listed.stdout, variables))


def _run(
    arguments: tuple[str, ...], folder: Path | None, seconds: float | None, variables: dict[str, str]
) -> subprocess.CompletedProcess[bytes]:
    settings = [word for setting in OFF for word in ("-c", setting)]
    command = ["git", "--no-pager", "--no-optional-locks", *settings, *arguments]
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise UsageError(
            f"git cannot be run ({reason_of(error)}); install it, or name two interpreters"
        ) from None


def _without_filters(listed: bytes, variables: dict[str, str]) -> dict[str, str]:
    """Return the variables that turn the repository's filters off.

    listed: scopes and keys in turns, with NUL behind each. A variable can name any key; `-c` would end the
    name of a filter at its first `=`.
    """
    fields = os.fsdecode(listed).split("\0")
    keys = [key for scope, key in zip(fields[::2], fields[1::2], strict=False) if scope in _OF_THE_REPOSITORY]
    filters = dict.fromkeys(key.rpartition(".")[0] for key in keys)
    first = int(variables.get("GIT_CONFIG_COUNT") or 0)
    settings = [(f"{name}.{key}", value) for name in filters for key, value in _FILTER_OFF.items()]
    numbered = {
        f"GIT_CONFIG_{field}_{number}": text
        for number, setting in enumerate(settings, start=first)
        for field, text in zip(("KEY", "VALUE"), setting, strict=True)
    }
    return {"GIT_CONFIG_COUNT": str(first + len(settings)), **numbered}
