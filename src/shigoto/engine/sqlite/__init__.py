"""The engine that keeps jobs in one SQLite file, shared by any number of processes on one machine."""

from shigoto.engine.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
