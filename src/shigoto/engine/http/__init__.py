"""A store that is behind a server: every operation is a request."""

from shigoto.engine.http.engine import RemoteEngine

__all__ = ["RemoteEngine"]
