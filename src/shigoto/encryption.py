"""Encryption at rest, and the redaction of what a run says.

AES-256-GCM, by `cryptography`. Each value has a key of its own, derived from the named one by HMAC-SHA256 and 16 random
bytes, and a random nonce: so there is no number of values after which a key is worn out, as there is for random nonces
alone (2³², a day's work of a busy store). What a text belongs to is bound to it: tenant, task, job and field. It cannot
be put into another's place; but for payloads, which may be those of another job of the same tenant and task
(`Envelope.id`).

Keys come from the app's code or from the environment, never from a command line, and there is no default.

`Redaction` redacts one run: the values of its secret parameters are taken out of its errors, progress and log lines,
with or without encryption. If its job is encrypted, all these are encrypted, and so are its result and its
checkpoints. That is done in the process that runs the handler, so what is passed on to the store or into a log
contains no secret.
"""

import hmac
import os
import re
from base64 import b64decode, b64encode
from binascii import Error as Undecodable
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import UUID

from msgspec import Struct, structs

from shigoto.model.errors import DeclarationError, EncryptionKeyMissing, PayloadTooLarge, ResultInvalid
from shigoto.model.job import Lease
from shigoto.model.secrets import KEY_ID, Envelope, hider, is_encrypted, read_envelope, write_envelope
from shigoto.model.text import fit
from shigoto.model.worker import Ending, Settlement

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEYS = "SHIGOTO_ENCRYPTION_KEYS"
KEY_FILE = "SHIGOTO_ENCRYPTION_KEY_FILE"
KEY_BYTES = 32
SALT, NONCE = 16, 12  # bytes
FORM = "Keys are written as ID:BASE64, the current one first; `shigoto secrets key` makes one."
MAX_LINE = 1_300  # bytes, so that a line is no longer than a line may be when it is encrypted

_TYPE = re.compile(r"([A-Za-z_][\w.]{0,99})(?:$|: )")

Field = Literal["payload", "result", "checkpoint", "progress", "log", "error", "traceback"]


class Whose(Protocol):
    """Whatever says of a text whose it is: a job, a lease, a spec."""

    @property
    def id(self) -> UUID: ...
    @property
    def tenant(self) -> str: ...
    @property
    def task(self) -> str: ...


class _Other(Struct, frozen=True):
    """Whose a payload was at first."""

    id: UUID
    tenant: str
    task: str


class Encryption:
    """The keys of an app, by their ids, and which of them is used from now on.

        app = Shigoto(encryption=Encryption({"2026": new_key, "2025": old_key}, current="2026"))

    A key is 32 random bytes, or their base64 text. The others stay readable: add a new key everywhere, then make it the
    current one, then run `shigoto secrets rotate`, and then forget the old one. Without `current` it is the first.
    Raises DeclarationError for what cannot be a key, and if `cryptography` is missing.
    """

    __slots__ = ("_cipher", "_keys", "current")

    def __init__(self, keys: Mapping[str, bytes | str], current: str | None = None) -> None:
        self._keys = {_checked_id(name): _checked_key(name, key) for name, key in keys.items()}
        if not self._keys:
            raise DeclarationError(f"Encryption takes at least one key. {FORM}")
        self.current = next(iter(self._keys)) if current is None else current
        if self.current not in self._keys:
            raise DeclarationError(
                f"The current key {self.current!r} is not among the keys: {', '.join(self._keys)}."
            )
        self._cipher = _cipher()

    def __repr__(self) -> str:
        return f"<Encryption with key {self.current!r} of {len(self._keys)}>"

    def __reduce__(self) -> Any:
        raise TypeError("Keys are not pickled: let the other process read them where this one has.")

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        return tuple(self._keys)

    def encrypt(self, text: str, whose: Whose, field: Field, *, about: str | None = None) -> str:
        """The text as an envelope; `about` is said in clear: the type of an error."""
        chance = os.urandom(SALT + NONCE)
        cipher = self._derived(self._keys[self.current], chance[:SALT])
        bound = _bound(whose.tenant, whose.task, whose.id, field)
        value = chance + cipher.encrypt(chance[SALT:], text.encode(), bound)
        id = whose.id if field == "payload" else None
        return write_envelope(Envelope(k=self.current, v=value, id=id, t=about))

    def open(self, text: str, whose: Whose, field: Field) -> str:
        """What the envelope holds; any other text as it is. Raises EncryptionKeyMissing."""
        if not is_encrypted(text):
            return text
        envelope = read_envelope(text)
        if envelope is None or len(envelope.v) < SALT + NONCE:
            raise EncryptionKeyMissing(f"{_named(whose, field)} begins like an encrypted text, and is none.")
        key = self._keys.get(envelope.k)
        if key is None:
            raise EncryptionKeyMissing(
                f"{_named(whose, field)} is encrypted with the key {envelope.k!r}, and only"
                f" {', '.join(map(repr, self._keys))} are known here. Add it to the keys of this process."
            )
        id = envelope.id if field == "payload" and envelope.id is not None else whose.id
        return self._decrypted(key, envelope, _bound(whose.tenant, whose.task, id, field), whose, field)

    def reencrypted(self, text: str, whose: Whose, field: Field) -> str:
        """The same in an envelope of the current key. Raises EncryptionKeyMissing."""
        plain, envelope = self.open(text, whose, field), read_envelope(text)
        if envelope is not None and envelope.id is not None:
            whose = _Other(envelope.id, whose.tenant, whose.task)
        return self.encrypt(plain, whose, field, about=None if envelope is None else envelope.t)

    def _decrypted(self, key: bytes, envelope: Envelope, bound: bytes, whose: Whose, field: Field) -> str:
        from cryptography.exceptions import InvalidTag

        salt, nonce, value = envelope.v[:SALT], envelope.v[SALT : SALT + NONCE], envelope.v[SALT + NONCE :]
        try:
            return self._derived(key, salt).decrypt(nonce, value, bound).decode()
        except InvalidTag:
            raise EncryptionKeyMissing(
                f"{_named(whose, field)} cannot be decrypted: the key {envelope.k!r} of this process is another one"
                " than that of whoever has encrypted it, or somebody has changed the text, or put it into the place of"
                " another."
            ) from None

    def _derived(self, key: bytes, salt: bytes) -> "AESGCM":
        return self._cipher(hmac.digest(key, salt, "sha256"))


class Box(Struct, frozen=True):
    """The keys and the job whose texts they are for."""

    keys: Encryption
    whose: Any  # a `Whose`

    def encrypt(self, field: Field, text: str, about: str | None = None) -> str:
        return self.keys.encrypt(text, self.whose, field, about=about)

    def open(self, field: Field, text: str) -> str:
        """What was in the envelope, if it is one. Raises EncryptionKeyMissing."""
        return self.keys.open(text, self.whose, field)


def opened(keys: Encryption | None, text: str, whose: Whose, field: Field) -> str:
    """What the envelope holds, if it is one. Raises EncryptionKeyMissing, also if there are no keys at all."""
    if not is_encrypted(text):
        return text
    if keys is None:
        raise EncryptionKeyMissing(
            f"{_named(whose, field)} is encrypted, and this process has no key at all. Give it the keys by"
            f" Shigoto(encryption=…), ${KEYS} or ${KEY_FILE}."
        )
    return keys.open(text, whose, field)


def new_key(id: str) -> str:
    """A fresh key with this id, as it is written into the environment or a file of keys. Raises DeclarationError."""
    return f"{_checked_id(id)}:{b64encode(os.urandom(KEY_BYTES)).decode()}"


def keys_from_environment(environment: Mapping[str, str] = os.environ) -> Encryption | None:
    """The keys that the environment names, itself or by a file; None if it names none. Raises DeclarationError."""
    written, file = environment.get(KEYS), environment.get(KEY_FILE)
    if written and file:
        raise DeclarationError(f"${KEYS} and ${KEY_FILE} both name keys: leave one of them out.")
    if written:
        return _read_keys(re.split(r"[\s,]+", written.strip()), f"${KEYS}")
    return _read_file(file) if file else None


def _read_file(file: str) -> Encryption:
    try:
        with open(file, encoding="utf-8") as stream:
            lines = [line.strip() for line in stream]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise DeclarationError(f"The file of keys that ${KEY_FILE} names cannot be read: {reason}.") from None
    return _read_keys([line for line in lines if line and not line.startswith("#")], f"${KEY_FILE}")


def _read_keys(words: list[str], where: str) -> Encryption:
    keys: dict[str, bytes | str] = {}
    for number, word in enumerate(words, 1):
        name, colon, key = word.partition(":")
        if not colon:
            # What stands there may be a key: it is not repeated.
            raise DeclarationError(f"{where}: key {number} has no id. {FORM}")
        if name in keys:
            raise DeclarationError(f"{where}: there are two keys {name!r}.")
        keys[name] = key
    return Encryption(keys)


def _checked_id(name: object) -> str:
    if not isinstance(name, str) or KEY_ID.fullmatch(name) is None:
        raise DeclarationError(
            "The id of a key is up to 40 letters, digits, '_', '.' and '-', and is stored with every value. "
            + FORM
        )
    return name


def _checked_key(name: str, key: object) -> bytes:
    """Never says what the key was."""
    if isinstance(key, str):
        try:
            key = b64decode(key, validate=True)
        except (Undecodable, ValueError):
            key = None
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise DeclarationError(f"The key {name!r} is not {KEY_BYTES} bytes, nor their base64. {FORM}")
    return key


def _cipher() -> "Callable[[bytes], AESGCM]":
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise DeclarationError(
            "Encryption needs the library cryptography: pip install 'shigoto[crypto]'."
        ) from None
    return AESGCM


def _bound(tenant: str, task: str, id: UUID, field: Field) -> bytes:
    return "\0".join(("shigoto 1", tenant, task, str(id), field)).encode()


def _named(whose: Whose, field: Field) -> str:
    return f"The {field} of job {whose.id} ({whose.task})"


class Redaction(Struct, frozen=True):
    """Of one run: how to encrypt its words, and how to take secrets out of them; either may be None."""

    box: Box | None
    hide: Callable[[str], str] | None

    def hidden(self, text: str) -> str:
        """The text without secrets, for whoever may read it."""
        return text if self.hide is None else self.hide(text)

    def said(self, field: Field, text: str, about: str | None = None) -> str:
        """Words for people: errors, progress."""
        text = self.hidden(text)
        return text if self.box is None else self.box.encrypt(field, text, about)

    def lines(self, text: str) -> Iterator[str]:
        text = self.hidden(text)
        for line in [text] if self.box is None else text.splitlines() or [""]:
            yield self._kept(line)

    def line(self, text: str) -> str:
        """One of them. What is secret in it is taken out before it is cut, lest a part of that be left."""
        return self._kept(self.hidden(text))

    def _kept(self, line: str) -> str:
        return line if self.box is None else self.box.encrypt("log", fit(line, MAX_LINE))

    def checkpoint(self, written: str, most: int) -> str:
        """A checkpoint, for the next run. Raises PayloadTooLarge."""
        return self._sealed("checkpoint", written, most, PayloadTooLarge)

    def result(self, written: str, most: int) -> str:
        """What the run returns. Raises ResultInvalid."""
        return self._sealed("result", written, most, ResultInvalid)

    def _sealed(self, field: Field, written: str, most: int, refusal: type[Exception]) -> str:
        encrypted = written if self.box is None else self.box.encrypt(field, written)
        if self.box is not None and len(encrypted) > most:
            raise refusal(f"The {field} has {len(encrypted):,} bytes when it is encrypted, of {most:,}.")
        return encrypted

    def settlement(self, settlement: Settlement, most: int, *, typed: bool = True) -> Settlement:
        """The end of the run; its progress and log lines were redacted before. Errors begin with their type if they are
        `typed`: those of others may begin with anything. Raises ResultInvalid."""
        result, error, trace = settlement.result, settlement.error, settlement.traceback
        # The type of an error tells people enough to look further, and is no secret.
        found = _TYPE.match(error) if error and typed and settlement.ending is not Ending.CANCELLED else None
        about = None if found is None else found[1]
        return structs.replace(
            settlement,
            result=None if result is None else self.result(result, most),
            error=None if error is None else self.said("error", error, about),
            traceback=None if trace is None else self.said("traceback", trace),
        )


def unredacted(
    lease: Lease,
    keys: Encryption | None,
    *,
    encrypts: bool,
    secrets: Collection[str],
    defaults: Mapping[str, Any],
) -> tuple[str, Redaction | None]:
    """The arguments of a job in clear, and what is to be kept of its run; None if nothing is. `defaults` are those of
    its `secrets`.

    Raises EncryptionKeyMissing. Without any keys an envelope stays one.
    """
    box = None
    if keys is not None and (encrypts or is_encrypted(lease.payload) or is_encrypted(lease.checkpoint)):
        box = Box(keys, lease)
    payload = lease.payload if box is None else box.open("payload", lease.payload)
    hide = hider(payload, secrets, defaults) if secrets else None
    return payload, None if box is None and hide is None else Redaction(box, hide)
