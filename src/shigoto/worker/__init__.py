"""The runtime: takes jobs from the store, runs them, and reports how they ended.

The path of a job, in reading order:

    claimer    STAGE 2  asks the store for what can be started now
    runner     STAGE 3  turns a lease into a settlement, in a strand of the event loop, a thread or a child process
    settler    STAGE 4  reports settlements in batches
    keeper              beats beside them, and passes on what the store orders

What these lean on:

    slots               how many jobs a pool may ask for
    strands, threads, children
                        the pools; pool is what they have in common, routing who asks for what, limits keeps time limits
    place, childprocess, messages, wire, kin
                        a child process from the worker's side, and how the two talk
    child, interrupts   the program of a child process
    isolation, source   what can run in a child process, and how it finds the app there
    plans               what running a job of one task takes
    endings             what an exception means for the job; errortext is how it is stored
    lifespan            what the app opens for its handlers
    exclusive           ends runs that must not overlap, before the lease does
    slate               what runs, written where a supervisor can read it
    promoter, sweeper   what any long-lived process does for the store
    reporter            carries progress to the store
    listener            the doorbell and the poll floor
    stop, shutdown      the request to stop, and the phases that follow
    logfields           which job a log line comes from
    station, wakeup     what the parts of one worker share, and how they wait
    crew                the parts, put together

Around workers, when they have processes of their own:

    supervisor          keeps runner processes at work: post is one place for them, family one of them, vouch beats
                        for it, burial says who died with it, office is all that is done at the store, reload watches
                        the code, procfs asks the system
    program             what a runner process runs; talk is what the two tell each other, address where the store is
    mainloop, watchdog  the event loop of a process that exists for one worker, and who ends it if a stop does not
    stats               the line of counts
"""

from shigoto.worker.stop import Stopped
from shigoto.worker.worker import Worker

__all__ = ["Stopped", "Worker"]
