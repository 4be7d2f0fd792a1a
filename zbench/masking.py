"""Masks values that look like secrets, in everything that is written: files of a run, and output.

A secret is the value of a key, a variable or a flag whose name ends in a word such as `token` or `api_key`.
Passwords in URLs and keys of known forms are secrets, too. The values of such variables of this process, and
the secrets of each sweep that was read (`learn`), are masked wherever they stand, without their name.
Masking a text takes time in proportion to its length: no pattern here reads a character again from a second
starting point.
"""

import html
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"

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
_URL_PASSWORD = re.compile(r"(://[^\s/:@]*+:)([^\s/@]++)(?=@)")
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
    if _is_numeric_password(value, name):
        return MASK
    if not isinstance(value, str):
        return value
    if name and len(value) >= _shortest(name):
        return MASK
    value = without_known_values(value)
    value = "".join(_without_named_values(value))
    value = _URL_PASSWORD.sub(rf"\1{MASK}", value)
    value = _BEARER.sub(rf"\1{MASK}", value)
    value = _PRIVATE_KEY.sub(rf"\1{MASK}", value)
    return _KNOWN_FORMS.sub(MASK, value)


def learn(*values: Any) -> None:
    """Remember the secrets in JSON values or texts: from now on they are masked wherever they stand."""
    for value in values:
        for secret in _secrets_in(value, ""):
            _known.setdefault(secret, _spellings(secret))


def forget() -> None:
    """Forget the secrets that were learned, such as those of an earlier command in this process."""
    _known.clear()


def without_known_values(text: str, *, is_document: bool = False) -> str:
    """Return a text without the secrets that were learned, and without those of this process's variables.

    is_document: the text may be JSON, in which a mask in place of digits is an error.
    """
    for spelling in known_spellings():
        if not (is_document and spelling.isdigit()):
            text = text.replace(spelling, MASK)
    return text


def known_spellings() -> list[str]:
    """Return every known secret as texts may spell it, the longest first: a secret can contain another."""
    spellings = {spelling for each in _known.values() for spelling in each}
    spellings |= {spelling for content in _secret_variables() for spelling in _spellings(content)}
    return sorted(spellings, key=len, reverse=True)


_known: dict[str, frozenset[str]] = {}
"""The secrets that were learned, with their spellings."""


@lru_cache(maxsize=1024)
def _spellings(secret: str) -> frozenset[str]:
    """Return a secret as it stands in plain text, in JSON, in Python's notation, in a URL and on a page."""
    encoded = (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1])
    return frozenset({secret, *encoded, quote(secret, safe=""), quote_plus(secret), html.escape(secret)})


def _secrets_in(value: Any, name: str) -> Iterator[str]:
    """Yield the secrets of JSON values, or of a text. name: the key that holds the value."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _secrets_in(item, str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets_in(item, name)
    elif _is_numeric_password(value, name):
        yield str(value)
    elif isinstance(value, str) and name and len(value) >= _shortest(name):
        if value != MASK and not _VARIABLE.match(value):
            yield value
    elif isinstance(value, str):
        yield from (value[begin:end] for begin, end in _named_values(value))
        passwords = (match[2] for match in _URL_PASSWORD.finditer(value))
        yield from (text for text in passwords if len(text) >= _SHORTEST_PASSWORD)


def _is_numeric_password(value: Any, name: str) -> bool:
    """Say whether a number is the value of a password: a sweep file can hold one without quotes."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_password = bool(name) and _shortest(name) == _SHORTEST_PASSWORD
    return is_number and is_password and len(str(value)) >= _SHORTEST_PASSWORD


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
    for begin, end in _named_values(text):
        yield text[done:begin]
        yield MASK
        done = end
    yield text[done:]


def _named_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield the place of each value in a text whose name is a secret's."""
    done = 0
    for match in _NAME.finditer(text):
        shortest = _shortest(match["name"])
        if match.start() < done or math.isinf(shortest):
            continue
        end = _end_of_value(text, match.end(), match["quote"])
        if _is_secret(text[match.end() : end], shortest):
            yield match.end(), end
            done = end


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
