"""Keeps freed memory in the process, for the next claim.

Payloads come and go by the megabyte. The C library of most Linux systems hands such amounts back to the system at once,
and to get them again costs a page fault for every 4 KiB: a tenth of the time of a job with 10 KB. It learns from what
is freed how much it may keep (mallopt(3): the dynamic mmap threshold): twice the largest block that it has seen, for
each thread. So one block, freed before it was ever touched, is enough. Elsewhere this does nothing.
"""

BLOCK = 16_000_000  # bytes: a claim, and the one that is worked off meanwhile


def keep_freed_memory() -> None:
    """Teach the C library."""
    bytes(BLOCK)
