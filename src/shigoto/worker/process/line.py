"""A socket between two processes of ours, read without a fuss: an error is an end."""

import socket

PORTION = 262_144  # bytes to read at once


def read(line: socket.socket) -> bytes | None:
    """What has arrived: None if nothing has, on a socket that does not block, and no bytes at all at the end."""
    try:
        return line.recv(PORTION)
    except BlockingIOError:
        return None
    except OSError:
        return b""
