"""What a run keeps from others: its arguments are opened for it alone, and what it says is covered before it leaves.

The values of its secret parameters are taken out of its errors, progress and log lines, whether anything is encrypted
or not. If its job is, all these are encrypted, and so are its result and its checkpoints. That is done where the words
are said, in the process that runs the handler: whoever passes them on, to the store or into a log, has nothing else.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from shigoto.encryption import Box, Encryption, Field
from shigoto.model.errors import PayloadTooLarge, ResultInvalid
from shigoto.model.job import Lease
from shigoto.model.secrets import hider, is_sealed
from shigoto.model.text import fit
from shigoto.model.worker import Ending, Settlement

MAX_LINE = 1_300  # bytes, so that a line is no longer than a line may be when it is encrypted

_TYPE = re.compile(r"([A-Za-z_][\w.]{0,99})(?:$|: )")


class Cover(Struct, frozen=True):
    """Of one run: how to encrypt its words, and how to take secrets out of them; either may be None."""

    box: Box | None
    hide: Callable[[str], str] | None

    def hidden(self, text: str) -> str:
        """The text without secrets, for whoever may read it."""
        return text if self.hide is None else self.hide(text)

    def said(self, field: Field, text: str, about: str | None = None) -> str:
        """Words for people: errors, progress."""
        text = self.hidden(text)
        return text if self.box is None else self.box.seal(field, text, about)

    def lines(self, text: str) -> Iterator[str]:
        """Lines for the log of the job."""
        text = self.hidden(text)
        for line in [text] if self.box is None else text.splitlines() or [""]:
            yield self._kept(line)

    def line(self, text: str) -> str:
        """One of them. What is secret in it is taken out before it is cut, lest a part of that be left."""
        return self._kept(self.hidden(text))

    def _kept(self, line: str) -> str:
        return line if self.box is None else self.box.seal("log", fit(line, MAX_LINE))

    def checkpoint(self, written: str, most: int) -> str:
        """A checkpoint, for the next run. Raises PayloadTooLarge."""
        if self.box is None:
            return written
        sealed = self.box.seal("checkpoint", written)
        if len(sealed) > most:
            raise PayloadTooLarge(
                f"The checkpoint has {len(sealed):,} bytes when it is encrypted, of {most:,}."
            )
        return sealed

    def result(self, written: str, most: int) -> str:
        """What the run returns. Raises ResultInvalid."""
        if self.box is None:
            return written
        sealed = self.box.seal("result", written)
        if len(sealed) > most:
            raise ResultInvalid(f"The result has {len(sealed):,} bytes when it is encrypted, of {most:,}.")
        return sealed

    def settlement(self, settlement: Settlement, most: int, *, typed: bool = True) -> Settlement:
        """The end of the run; its progress and log lines were covered before. Errors begin with their type if they are
        `typed`: those of others may begin with anything. Raises ResultInvalid."""
        result, error, trace = settlement.result, settlement.error, settlement.traceback
        about = _type_of(error) if typed and settlement.ending is not Ending.CANCELLED else None
        return structs.replace(
            settlement,
            result=None if result is None else self.result(result, most),
            error=None if error is None else self.said("error", error, about),
            traceback=None if trace is None else self.said("traceback", trace),
        )


def uncovered(
    lease: Lease,
    keys: Encryption | None,
    *,
    encrypts: bool,
    secrets: Collection[str],
    defaults: Mapping[str, Any],
) -> tuple[str, Cover | None]:
    """The arguments of a job in clear, and what is to be kept of its run; None if nothing is. `defaults` are those of
    its `secrets`.

    Raises EncryptionKeyMissing. Without any keys an envelope stays one.
    """
    box = None
    if keys is not None and (encrypts or is_sealed(lease.payload) or is_sealed(lease.checkpoint)):
        box = Box(keys, lease)
    payload = lease.payload if box is None else box.open("payload", lease.payload)
    hide = hider(payload, secrets, defaults) if secrets else None
    return payload, None if box is None and hide is None else Cover(box, hide)


def _type_of(error: str | None) -> str | None:
    """The type of an error, which tells people enough to look further, and is no secret."""
    found = None if error is None else _TYPE.match(error)
    return None if found is None else found[1]
