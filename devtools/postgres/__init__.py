"""A private PostgreSQL: a server of our own in a folder of our own, for development and for tests.

    with Server("state/postgres") as server:
        ...     # server.address is a URL for the store

It takes the programs that are on this machine; `available()` says which. The server listens on 127.0.0.1 alone, asks
for a password that stands in the folder, and ends with the process that has started it, however that ends.
"""

from devtools.postgres.install import available
from devtools.postgres.server import Server

__all__ = ["Server", "available"]
