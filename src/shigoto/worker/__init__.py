"""The runtime: takes jobs from the store, runs them, and reports how they ended.

The path of a job, in reading order:

    claimer        STAGE 2  asks the store for what can be started now
    runner         STAGE 3  turns a lease into a settlement, in a strand of the event loop, a thread or a child process
    settler        STAGE 4  reports settlements in batches
    keeper                  beats beside them, and passes on what the store orders

What these lean on:

    slots          how many jobs a pool may ask for
    loop_pool, thread_pool, process_pool
                   the pools; pool is what they have in common, parts says who asks for what
    child_process, child_main, interrupts
                   a child process from the worker's side, its program, and what is raised in it from outside
    endings        what an exception means for the job, and how it is stored
    maintenance, ticker
                   what any long-lived process does for the store
    reporting      carries progress and log lines to the store
    state          what the parts of one worker share
    parts          the parts, put together
    starting, stopping
                   how a worker begins, and the request to stop; the phases that follow are in `worker`
    health         whether it is ready
    process        what all processes of a worker share
    process_main   the event loop of a process that exists for one worker, and who ends it if a stop does not

Around workers, when they have processes of their own, is the supervisor: `supervisor/`.
"""

from shigoto.worker.stopping import Stopped
from shigoto.worker.worker import Worker

__all__ = ["Stopped", "Worker"]
