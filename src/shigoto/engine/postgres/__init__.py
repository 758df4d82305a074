"""The PostgreSQL engine: jobs in a schema of a database that others use, too."""

from shigoto.engine.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
