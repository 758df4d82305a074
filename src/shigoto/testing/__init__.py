"""For tests: `app.test()` for users, a clock that obeys, and the suite that every engine must pass.

The suite, `shigoto.testing.conformance`, needs pytest and hypothesis; the rest needs neither.
"""

from shigoto.testing.jobs import Jobs
from shigoto.testing.runs import Ran, Run

__all__ = ["Jobs", "Ran", "Run"]
