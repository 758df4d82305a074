"""Who is at the command line, for the audit."""

import os
import socket
from typing import TYPE_CHECKING

from shigoto.model.text import fit, spelt_out

if TYPE_CHECKING:
    from shigoto.engine.protocol import Engine
    from shigoto.filters import Filters
    from shigoto.server.audit import Audited

MOST = 200  # bytes


def actor() -> str:
    """`cli:user@host`, as the system knows them; a container may know no name, but always a number."""
    import getpass

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = str(os.getuid())
    return fit(spelt_out(f"cli:{user}@{socket.gethostname()}"), MOST)


def audited(engine: "Engine", filters: "Filters | None" = None) -> "Audited":
    """The engine, which notes what is done to jobs and queues; with filters, as done to all that match."""
    from shigoto.filters import write_filter
    from shigoto.server.audit import Audited

    return Audited(engine, actor(), None if filters is None else write_filter(filters))
