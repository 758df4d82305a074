"""Memory of a process that runs jobs: freed memory stays for the next claim, and garbage is looked for less often.

Payloads come and go by the megabyte. The C library of most Linux systems hands such amounts back to the system at once,
and to get them again costs a page fault for every 4 KiB: a tenth of the time of a job with 10 KB. It learns from what
is freed how much it may keep (mallopt(3): the dynamic mmap threshold): twice the largest block that it has seen, for
each thread. So one block, freed before it was ever touched, is enough. Elsewhere this does nothing.

Garbage is looked for after so many new objects (Python's default: 700 or 2000). Thousands of leases are alive at any
time, and each look meets them all for nothing: with fewer looks a drain takes 4 % less. What the app has loaded before
its first job is not looked at again.
"""

import gc

BLOCK = 16_000_000  # bytes: a claim, and the one that is worked off meanwhile
OBJECTS = 20_000


def keep_freed_memory() -> None:
    """Teach the C library."""
    bytes(BLOCK)


def collect_rarely() -> None:
    """For a process of our own, when the app is loaded. An app that has chosen more, or none at all, keeps that."""
    gc.freeze()
    objects, *others = gc.get_threshold()
    if 0 < objects < OBJECTS:
        gc.set_threshold(OBJECTS, *others)
