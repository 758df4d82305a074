"""The runtime: takes jobs from the store, runs them, and reports how they ended.

The path of a job, in reading order:

    claimer    STAGE 2  asks the store for what can be started now
    runner     STAGE 3  turns a lease into a settlement, in a strand of the event loop or in a thread
    settler    STAGE 4  reports settlements in batches
    keeper              beats beside them, and passes on what the store orders

What these lean on:

    slots               how many jobs a pool may ask for
    strands, threads      the two pools; pool is what they have in common, limits keeps time limits
    endings             what an exception means for the job; errortext is how it is stored
    promoter, sweeper   what any long-lived process does for the store
    reporter            carries progress to the store
    listener            the doorbell and the poll floor
    stop, shutdown      the request to stop, and the phases that follow
    logfields           which job a log line comes from
    station, wakeup     what the parts of one worker share, and how they wait
    crew                the parts, put together
"""

from shigoto.worker.stop import Stopped
from shigoto.worker.worker import Worker

__all__ = ["Stopped", "Worker"]
