"""The engine in one process: nothing survives it, and nothing is needed to run it.

It is also the model of the semantics that can be executed: where another engine and this one disagree, one of
the two has a bug, and here it is easy to see which. Hence clarity before speed, with one bound: no operation
on the path of a job looks at more jobs than it touches.

    engine   the contract, the lock, the doorbells
    submit   enqueue and the unique keys
    work     announce, claim, beat, report, settle
    repair   promote and sweep
    manage   cancel, retry, delete, configure
    look     get, find, attempts, stats, settings, workers
    store    the rows and their indexes, time, and the one way to move a row
    line     a waiting line: a heap that forgets lazily
    row      one job and one worker
"""

from shigoto.engine.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
