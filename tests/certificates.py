"""Certificates for tests of TLS, made of nothing but the standard library: an authority, and what it signs.

    mine = Authority("mine")
    mine.write("ca.pem")
    mine.issue("127.0.0.1", certificate="cert.pem", key="key.pem")

ECDSA on P-256 with SHA-256, in X.509 of version 3: as much of it as the strictest check of OpenSSL asks for. Whoever
has a watch could learn these keys, so they are for tests alone.
"""

import secrets
from base64 import encodebytes
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha1, sha256
from ipaddress import ip_address
from os import PathLike
from pathlib import Path

Point = tuple[int, int] | None  # None is the one at infinity

# The curve P-256, also called prime256v1: y² = x³ - 3x + b.
P = 2**256 - 2**224 + 2**192 + 2**96 - 1
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)


def add(one: Point, other: Point) -> Point:
    """The sum of two points of the curve."""
    if one is None or other is None:
        return other if one is None else one
    if one[0] == other[0] and (one[1] + other[1]) % P == 0:
        return None
    if one == other:
        slope = (3 * one[0] * one[0] - 3) * pow(2 * one[1], -1, P) % P
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, P) % P
    x = (slope * slope - one[0] - other[0]) % P
    return x, (slope * (one[0] - x) - one[1]) % P


def times(factor: int) -> tuple[int, int]:
    """The base point, so many times."""
    found: Point = None
    doubled: Point = G
    while factor:
        found = add(found, doubled) if factor & 1 else found
        doubled, factor = add(doubled, doubled), factor >> 1
    assert found is not None
    return found


# DER: every value has a tag, a length and a content.


def der(tag: int, *parts: bytes) -> bytes:
    """One value."""
    content = b"".join(parts)
    length = len(content)
    if length < 0x80:
        return bytes([tag, length]) + content
    digits = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(digits)]) + digits + content


def sequence(*parts: bytes) -> bytes:
    return der(0x30, *parts)


def integer(value: int) -> bytes:
    return der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def bits(content: bytes, unused: int = 0) -> bytes:
    return der(0x03, bytes([unused]), content)


def octets(content: bytes) -> bytes:
    return der(0x04, content)


def oid(text: str) -> bytes:
    """The name of something, such as 2.5.29.17."""
    first, second, *rest = (int(part) for part in text.split("."))
    encoded = [40 * first + second]
    for part in rest:
        digits = [part & 0x7F]
        while part := part >> 7:
            digits.insert(0, 0x80 | part & 0x7F)
        encoded += digits
    return der(0x06, bytes(encoded))


def instant(at: datetime) -> bytes:
    return der(0x17, at.strftime("%y%m%d%H%M%SZ").encode())


def named(name: str) -> bytes:
    """A distinguished name that is a common name only."""
    return sequence(der(0x31, sequence(oid("2.5.4.3"), der(0x0C, name.encode()))))


def extension(name: str, content: bytes, *, critical: bool = False) -> bytes:
    return sequence(oid(name), *([der(0x01, b"\xff")] if critical else []), octets(content))


ECDSA_WITH_SHA256 = sequence(oid("1.2.840.10045.4.3.2"))
P256 = oid("1.2.840.10045.3.1.7")
TRUE = der(0x01, b"\xff")


def pem(kind: str, content: bytes) -> str:
    return f"-----BEGIN {kind}-----\n{encodebytes(content).decode()}-----END {kind}-----\n"


class Key:
    """A key of the curve."""

    def __init__(self) -> None:
        self.secret = secrets.randbelow(N - 1) + 1
        x, y = times(self.secret)
        self.point = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
        self.public = sequence(sequence(oid("1.2.840.10045.2.1"), P256), bits(self.point))
        self.id = sha1(self.point, usedforsecurity=False).digest()

    def sign(self, content: bytes) -> bytes:
        digest = int.from_bytes(sha256(content).digest(), "big")
        once = secrets.randbelow(N - 1) + 1
        r = times(once)[0] % N
        s = pow(once, -1, N) * (digest + r * self.secret) % N
        return sequence(integer(r), integer(s))

    @property
    def text(self) -> str:
        """For a file."""
        secret = octets(self.secret.to_bytes(32, "big"))
        return pem(
            "EC PRIVATE KEY", sequence(integer(1), secret, der(0xA0, P256), der(0xA1, bits(self.point)))
        )


class Authority:
    """Somebody who vouches for servers."""

    def __init__(self, name: str) -> None:
        self.name, self._key = name, Key()
        own = [
            extension("2.5.29.19", sequence(TRUE), critical=True),  # basicConstraints: it is an authority
            extension("2.5.29.15", bits(b"\x06", unused=1), critical=True),  # keyUsage: to sign certificates
            extension("2.5.29.14", octets(self._key.id)),  # subjectKeyIdentifier
        ]
        self.text = self._signed(name, self._key, own, timedelta(days=1))

    def write(self, file: str | PathLike[str]) -> None:
        """What others need to trust it."""
        Path(file).write_text(self.text)

    def issue(
        self,
        host: str,
        *,
        certificate: str | PathLike[str],
        key: str | PathLike[str],
        lasts: timedelta = timedelta(days=1),
    ) -> None:
        """A certificate for a server of this name or address; it has expired already if it lasts less than nothing."""
        own = Key()
        try:
            known_as = der(0x87, ip_address(host).packed)
        except ValueError:
            known_as = der(0x82, host.encode())
        said = [
            extension("2.5.29.17", sequence(known_as)),  # subjectAltName
            extension("2.5.29.35", sequence(der(0x80, self._key.id))),  # authorityKeyIdentifier
            extension("2.5.29.14", octets(own.id)),
            extension("2.5.29.37", sequence(oid("1.3.6.1.5.5.7.3.1"))),  # extKeyUsage: a server
        ]
        Path(certificate).write_text(self._signed(host, own, said, lasts))
        Path(key).write_text(own.text)

    def _signed(self, subject: str, key: Key, extensions: Sequence[bytes], lasts: timedelta) -> str:
        until = datetime.now(UTC) + lasts
        content = sequence(
            der(0xA0, integer(2)),  # version 3
            integer(secrets.randbits(127) + 1),
            ECDSA_WITH_SHA256,
            named(self.name),
            sequence(instant(until - timedelta(days=2)), instant(until)),
            named(subject),
            key.public,
            der(0xA3, sequence(*extensions)),
        )
        return pem("CERTIFICATE", sequence(content, ECDSA_WITH_SHA256, bits(self._key.sign(content))))
