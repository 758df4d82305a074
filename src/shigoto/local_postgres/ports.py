"""A free port for a server that goes away and comes back."""

import random
import socket
from contextlib import suppress
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST, HIGHEST = 15_000, 32_767
TRIES = 100


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on, outside of the range that the system hands out to clients.

    Inside of it some other connection could take the port while the server is down; and a client that tries again and
    again could even be connected with itself.
    """
    below = HIGHEST
    with suppress(OSError, ValueError, IndexError):
        below = min(below, int(RANGE.read_text().split()[0]) - 1)
    for _ in range(TRIES if below > LOWEST else 0):
        port = random.randint(LOWEST, below)
        if is_free(port):
            return port
    with socket.socket() as any_free:
        any_free.bind(("127.0.0.1", 0))
        return int(any_free.getsockname()[1])


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does it: what is left of closed connections is no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
