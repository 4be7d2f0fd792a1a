"""A TCP port for the ranks of one trial to meet at."""

import socket


def free_port(address: str = "") -> int:
    """Return a TCP port of `address` (this host's name for itself; "": all) that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
