"""Suites that implementations inherit: each tells an implementation whether it keeps its protocol.

Needs pytest. No other package of zbench imports this package.
"""

from importlib.util import find_spec

if find_spec("pytest") is None:
    raise ImportError("zbench.testing needs pytest; install it: pip install pytest")

import pytest

SUITES = ("adam", "collectives", "engine", "reporting", "rollback")
pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in SUITES))  # a failure shows both sides
