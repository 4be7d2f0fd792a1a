"""Masks values that look like secrets in the files of a run: its specification, records, logs and pages.

A secret is the value of a key, a variable or a flag whose name ends in a word such as `token` or `api_key`.
Passwords in URLs and keys of known forms are secrets, too, and so are the values of such variables of this
process. Masking a text
takes time in proportion to its length: no pattern here reads a character again from a second starting point.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from zbench.record.record import Record

MASK = "***"
_LONGEST_LOG = 64 << 20

# A password may be short and of digits only; other secrets have 8 characters or more, one of them a letter.
_PASSWORDS = ("password", "passwd", "passphrase", "passcode", "pwd")
_FOLDERS = ("pwd", "oldpwd")  # a shell's working directories
_KINDS_OF_KEY = (
    "api",
    "access",
    "secret",
    "private",
    "auth",
    "account",
    "encryption",
    "signing",
    "master",
    "deploy",
)
_SECRETS = ("secret", "credential", "credentials", "cookie", *(f"{kind}key" for kind in _KINDS_OF_KEY))
# fmt: off
_WORDS_BEFORE_A_TOKEN_OF_TEXT = {
    "pad", "eos", "bos", "unk", "sep", "cls", "mask", "per", "image", "audio", "video", "special", "start",
    "end", "stop", "begin", "prefix", "suffix", "middle", "first", "last", "next", "new", "every", "each",
}
# fmt: on
_SHORTEST_PASSWORD = 6
_SHORTEST = 8

_WORD = re.compile(r"[A-Z]++(?![a-z])|[A-Z]?[a-z]++|[A-Z]++")
# A name, and what stands between it and its value: `name=`, `"name": "`, `\\"name\\": \\"`, `--name `.
_NAME = re.compile(
    r"(?<![\w.-])(?P<dashes>--?+)?(?P<name>[A-Za-z_][\w.-]{0,127}+)"
    r"(?:\\?[\"']?[ \t]*+[=:][ \t]*+|(?(dashes)[ \t]++|(?!)))(?P<quote>\\?[\"'])?"
)
_VARIABLE = re.compile(r"\$[A-Z_]++$")
_BARE_VALUE = re.compile(r"[^\s\"'\\,;&{}]++")
_URL_PASSWORD = re.compile(r"(://[^\s/:@]*+:)[^\s/@]++(?=@)")
_BEARER = re.compile(
    r"\b(bearer\s++|authorization[\"']?\s*+[:=]\s*+[\"']?(?:basic|token|digest)\s++)[\w.~+/=-]{8,}+",
    re.IGNORECASE,
)
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]++")
_KNOWN_FORMS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}+|gh[pousr]_\w{16,}+|github_pat_\w{16,}+|gl(?:pat|ptt|dt|rt|cbt|soat|ft|agent|oas)-[\w-]{16,}+"
    r"|sk-[\w-]{16,}+|[sr]k_(?:live|test)_\w{10,}+|whsec_\w{16,}+|xox[a-z]-[\w-]{10,}+|xapp-[\w-]{10,}+"
    r"|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}+|AIza[\w-]{30,}+|ya29\.[\w-]{16,}+|GOCSPX-[\w-]{16,}+|1//0[\w-]{20,}+"
    r"|npm_[A-Za-z0-9]{30,}+|pypi-[\w-]{16,}+|dckr_pat_[\w-]{16,}+|do[opr]_v1_[a-f0-9]{32,}+|shp(?:at|ca|pa|ss)_\w{16,}+"
    r"|SG\.[\w-]{16,}+\.[\w-]{16,}+|key-[0-9a-f]{32}|sq0(?:atp|csp)-[\w-]{16,}+|EAAA[\w-]{40,}+|lin_api_\w{16,}+"
    r"|secret_[A-Za-z0-9]{32,}+|ntn_\w{30,}+|hvs\.[\w-]{16,}+|r8_\w{30,}+|gsk_\w{30,}+|tvly-[\w-]{16,}+|nvapi-[\w-]{16,}+"
    r"|PMAK-[\w-]{16,}+|dapi[0-9a-f]{32}|rubygems_[0-9a-f]{32,}+|figd_[\w-]{16,}+|glsa_\w{16,}+|atlasv1\.[\w.-]{16,}+"
    r"|eyJ[\w-]{8,}+\.eyJ[\w-]{8,}+(?:\.[\w-]*+)?"
    r")"
)  # fmt: skip


def masked(value: Any, name: str = "") -> Any:
    """Return JSON values, or a text, without secrets. name: the key that holds the value."""
    if isinstance(value, Mapping):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if name and len(value) >= _shortest(name):
        return MASK
    for content in _secret_variables():
        value = value.replace(content, MASK)
    value = "".join(_without_named_values(value))
    value = _URL_PASSWORD.sub(rf"\1{MASK}", value)
    value = _BEARER.sub(rf"\1{MASK}", value)
    value = _PRIVATE_KEY.sub(rf"\1{MASK}", value)
    return _KNOWN_FORMS.sub(MASK, value)


def _secret_variables() -> list[str]:
    """Return the values of this process's variables that are named like secrets."""
    variables = os.environ.items()
    return [content for variable, content in variables if len(content) >= max(_SHORTEST, _shortest(variable))]


@lru_cache(maxsize=4096)
def _shortest(name: str) -> float:
    """Return from how many characters on a value of this name is a secret; infinite for a harmless name."""
    words = [word.lower() for word in _WORD.findall(name)]
    letters = "".join(words)
    if letters.endswith(_PASSWORDS) and letters not in _FOLDERS:
        return _SHORTEST_PASSWORD
    if letters.endswith(_SECRETS):
        return _SHORTEST
    if letters.endswith("token"):
        before = "".join(words[-2:-1]) if words[-1] == "token" else words[-1].removesuffix("token")
        return math.inf if before in _WORDS_BEFORE_A_TOKEN_OF_TEXT else _SHORTEST
    return math.inf


def _without_named_values(text: str) -> Iterator[str]:
    """Yield the pieces of a text, with a mask in place of each value whose name is a secret's."""
    done = 0
    for match in _NAME.finditer(text):
        shortest = _shortest(match["name"])
        if match.start() < done or math.isinf(shortest):
            continue
        end = _end_of_value(text, match.end(), match["quote"])
        if _is_secret(text[match.end() : end], shortest):
            yield text[done : match.end()]
            yield MASK
            done = end
    yield text[done:]


def _end_of_value(text: str, begin: int, quote: str | None) -> int:
    """Return where a value ends: at its closing quote on the same line, else before the next separator."""
    if quote:
        line_end = text.find("\n", begin)
        closing = text.find(quote, begin, len(text) if line_end == -1 else line_end)
        if closing != -1:
            return closing
    bare = _BARE_VALUE.match(text, begin)
    return bare.end() if bare else begin


def _is_secret(value: str, shortest: float) -> bool:
    """Say whether a value of a secret's name is one: long enough, no placeholder, and not just a number."""
    if len(value) < shortest or _VARIABLE.match(value) or value[:1] == "{":
        return False
    return shortest == _SHORTEST_PASSWORD or any(character.isalpha() for character in value)


def masked_record(record: Record) -> Record:
    """Return a record without the secrets of its configuration and messages."""
    error = record.error and replace(record.error, message=masked(record.error.message))
    values = {key: masked(getattr(record, key)) for key in ("axes", "config", "warnings")}
    return replace(record, error=error, **values)


def mask_files(folder: Path) -> None:
    """Mask the secrets in the files of a folder, such as the logs of a trial; one above 64 MiB is left."""
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= _LONGEST_LOG:
            text = file.read_bytes().decode(errors="surrogateescape")
            if (clean := masked(text)) != text:
                file.write_bytes(clean.encode(errors="surrogateescape"))
