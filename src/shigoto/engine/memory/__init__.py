"""The engine in one process: nothing survives it, and nothing is needed to run it.

It is also the model of the semantics that can be executed: where another engine and this one disagree, one of
the two has a bug, and here it is easy to see which. Hence clarity before speed, with one bound: no operation
on the path of a job looks at more jobs than it touches.

    engine    the contract, the lock, the doorbells
    work      enqueue and the unique keys; announce, claim, beat, report, settle; promote and sweep
    people    get, find, attempts, stats, settings, workers; cancel, retry, delete, configure
    ticking   schedules and their histories
    service   tokens, the audit, the feed, and what is encrypted
    store     the rows, their waiting lines and indexes, time, and the one way to move a row
"""

from shigoto.engine.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
