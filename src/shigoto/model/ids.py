"""Job and worker ids: UUIDv7, made by the client, so that a repeated request is recognised as the same one.

    48 bits of Unix milliseconds | version | 12 bits | variant | 62 random bits

In one id alone the twelve bits are random too. In a batch they count, so that its ids are in the order of its jobs, and
an index over them grows at its end.
"""

from os import urandom
from time import time_ns
from uuid import UUID

from msgspec import msgpack

COUNT = 1 << 12

# A third of what `UUID(int=…)` takes.
_decode = msgpack.Decoder(UUID).decode
_decode_many = msgpack.Decoder(list[UUID]).decode
# A list of up to 65 535 items, and before each item: sixteen bytes follow.
_LIST, _ITEM = b"\xdc", b"\xc4\x10"
_VERSION_AND_VARIANT = 0x7 << 76 | 0x2 << 62
_FREE = (1 << 128) - 1 & ~(0xF << 76 | 0x3 << 62)
_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))


def uuid7(unix_millis: int | None = None, random: bytes | None = None) -> UUID:
    """A UUID of version 7.

    The standard library has one from Python 3.14 on; this costs about a microsecond and serves 3.11 too.
    """
    millis = time_ns() // 1_000_000 if unix_millis is None else unix_millis
    bits = int.from_bytes(random or urandom(10))
    return _decode(_ITEM + ((millis << 80 | bits) & _FREE | _VERSION_AND_VARIANT).to_bytes(16))


def uuids7(count: int, unix_millis: int | None = None) -> list[UUID]:
    """So many of them, in ascending order; more than 4096 reach into the next millisecond.

    Four times as fast as one by one: the bytes are put together column by column, and become UUIDs in one step.
    """
    millis = time_ns() // 1_000_000 if unix_millis is None else unix_millis
    ids: list[UUID] = []
    for first in range(0, count, COUNT):
        ids += _portion(min(COUNT, count - first), millis + first // COUNT)
    return ids


def _portion(count: int, millis: int) -> list[UUID]:
    random = urandom(8 * count)
    numbers = range(0x7000, 0x7000 + count)
    columns = [_ITEM[:1] * count, _ITEM[1:] * count]
    columns += [bytes((byte,)) * count for byte in (millis & (1 << 48) - 1).to_bytes(6, "big")]
    columns += [bytes([number >> 8 for number in numbers]), bytes([number & 0xFF for number in numbers])]
    columns += [random[:count].translate(_VARIANT)]
    columns += [random[count * at : count * (at + 1)] for at in range(1, 8)]
    packed = bytearray(len(columns) * count)
    for at, column in enumerate(columns):
        packed[at :: len(columns)] = column
    return _decode_many(_LIST + count.to_bytes(2, "big") + packed)
