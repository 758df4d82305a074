"""Messages between processes of one worker, as bytes on a stream: four bytes of length, then msgpack.

Nothing here touches a socket. Whoever has one writes what `encode` returns, in one piece, and hands whatever arrives to
an `Inbox`, in any pieces.
"""

from struct import Struct as Layout
from typing import Any, Generic, TypeVar

from msgspec import Struct, msgpack

M = TypeVar("M", bound=Struct)

LONGEST = 64 * 1024 * 1024  # bytes of one message; a job and its result are a few MiB at most

_LENGTH = Layout(">I")
_ENCODER = msgpack.Encoder()


class BrokenWire(Exception):
    """What arrived was never sent by us: somebody else has written to the stream."""


def encode(message: Struct) -> bytes:
    """The message as it goes on the stream."""
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


class Inbox(Generic[M]):
    """Puts messages together from what arrives; `kinds` is the union of tagged structs that may come."""

    def __init__(self, kinds: Any) -> None:
        self._decoder: msgpack.Decoder[M] = msgpack.Decoder(kinds)
        self._data = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that are complete now, in their order. Raises BrokenWire."""
        self._data += data
        messages: list[M] = []
        at = 0
        while len(self._data) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data, at)
            if length > LONGEST:
                raise BrokenWire(f"a message of {length} bytes was announced")
            end = at + _LENGTH.size + length
            if len(self._data) < end:
                break
            messages.append(self._decode(bytes(self._data[at + _LENGTH.size : end])))
            at = end
        del self._data[:at]
        return messages

    def _decode(self, body: bytes) -> M:
        try:
            return self._decoder.decode(body)
        except Exception as error:
            raise BrokenWire(str(error)) from error
