"""The return value of one task function ⇄ JSON text."""

from dataclasses import dataclass
from typing import Any, Self

import msgspec

from shigoto.codec.slot import Slot, read_foreign
from shigoto.codec.text import ENCODER, Limits, TooLarge, check_limits, explain, with_numbers
from shigoto.model.errors import ResultInvalid


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What one task function returns.

    Looser than arguments are: by the time there is a result the effect has happened, so only what cannot be
    stored is refused, and under `Any` whatever has a JSON form is stored in that form.
    """

    task: str
    slot: Slot
    limits: Limits
    decoder: msgspec.json.Decoder[Any]

    @classmethod
    def of(cls, task: str, slot: Slot, limits: Limits) -> Self:
        """Build the decoder for a resolved annotation."""
        return cls(task, slot, limits, msgspec.json.Decoder(slot.stored_as, dec_hook=read_foreign))

    def encode(self, value: object) -> str:
        """Write, and see whether it reads back. Raises ResultInvalid."""
        try:
            return self._encode(value).decode()
        except Exception as error:
            reason, path = explain(error)
            raise ResultInvalid(
                f"task {self.task!r}: the result{path} cannot be stored: {reason}."
            ) from error

    def decode(self, text: str) -> Any:
        """The value in a stored text. Raises ResultInvalid."""
        try:
            return self._read(text)
        except Exception as error:
            reason, path = explain(error)
            raise ResultInvalid(
                f"task {self.task!r}: the stored result{path} does not fit the return annotation: {reason}."
            ) from error

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the stored text."""
        from shigoto.codec.schema import schema_of_result

        return schema_of_result(self.task, self.slot)

    def _write(self, value: object) -> bytes:
        adapter = self.slot.adapter
        written = ENCODER.encode(value if adapter is None else adapter.write(value))
        check_limits(written, self.limits)
        return written

    def _read(self, text: str | bytes) -> Any:
        value = self.decoder.decode(text)
        return value if self.slot.adapter is None else self.slot.adapter.read(value)

    def _encode(self, value: object) -> bytes:
        try:
            written = self._write(value)
        except TooLarge:
            raise
        except Exception:
            self._check(value)
            raise
        try:
            unchanged = self._read(written) == value
        except Exception:
            unchanged = False
            written = with_numbers(written, self.slot.node)
        if self.slot.opaque or not unchanged:
            self._check(value)
        return written

    def _check(self, value: object) -> None:
        self.slot.check_storable(value, depth=self.limits.depth)
