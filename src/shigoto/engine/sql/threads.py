"""How engines start their threads."""

import threading

from shigoto.model.errors import StoreUnavailable


def started(thread: threading.Thread) -> None:
    """Start it. Raises StoreUnavailable where the system has no room for one more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise StoreUnavailable(f"No thread for the store could be started: {error}.") from error
