"""Keeps freed memory in the process, for the next claim.

Payloads come and go by the megabyte. The C library of most Linux systems hands such amounts back to the system at once,
and to get them again costs a page fault for every 4 KiB: a tenth of the time of a job with 10 KB. It learns from what
is freed how much it may keep (mallopt(3): the dynamic mmap threshold), so one large block, freed before it was ever
touched, teaches it to keep up to 64 MB. Elsewhere this does nothing.
"""

BLOCK = 32_000_000  # bytes; larger ones teach it nothing


def keep_freed_memory() -> None:
    """Teach the C library."""
    bytes(BLOCK)
