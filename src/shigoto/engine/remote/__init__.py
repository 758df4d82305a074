"""The engine whose store is behind a server: every operation is a request."""

from shigoto.engine.remote.engine import RemoteEngine

__all__ = ["RemoteEngine"]
