"""Job and worker ids: UUIDv7, made by the client, so that a repeated request is recognised as the same one."""

import os
import time
from uuid import UUID


def uuid7(unix_millis: int | None = None, random: bytes | None = None) -> UUID:
    """A UUID of version 7: 48 bits of Unix milliseconds, then 74 random bits.

    The standard library has one from Python 3.14 on; this costs about a microsecond and serves 3.11 too.
    """
    millis = time.time_ns() // 1_000_000 if unix_millis is None else unix_millis
    bits = int.from_bytes(os.urandom(10) if random is None else random, "big")
    return UUID(
        int=(millis & (1 << 48) - 1) << 80
        | 0x7 << 76
        | (bits >> 62 & 0xFFF) << 64
        | 0x2 << 62
        | bits & (1 << 62) - 1
    )
