"""Helpers for users' tests: `app.test()`, and a clock that moves only on request. They need no test framework."""

from shigoto.testing.jobs import Jobs
from shigoto.testing.runs import Ran, Run

__all__ = ["Jobs", "Ran", "Run"]
