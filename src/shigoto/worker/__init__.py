"""The runtime: takes jobs from the store, runs them, and reports how they ended.

    claimer        STAGE 2  asks the store for what can be started now
    runner         STAGE 3  turns a lease into a settlement, in a strand of the event loop, a thread or a child process
    settler        STAGE 4  reports settlements in batches
    keeper                  sends heartbeats beside them, and passes on what the store orders

`parts` puts them and the pools together and stops them, `worker` is what a program uses, and `supervisor/` runs workers
in processes of their own. `docs/reference/tree.md` has the idea of each module.
"""

from shigoto.worker.stopping import Stopped
from shigoto.worker.worker import Worker

__all__ = ["Stopped", "Worker"]
