"""A PostgreSQL server for the tests that share a study."""

from collections.abc import Iterator

import pytest

from . import postgres


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """Run a server that a test may kill and start again; every test has a study of its own."""
    pytest.importorskip("psycopg")
    if postgres.BINARIES is None:
        pytest.skip("PostgreSQL's server is not installed")
    with postgres.running() as server:
        yield server
