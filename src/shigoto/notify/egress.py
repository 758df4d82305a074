"""Connections to addresses that a request may reach: never into private networks, whatever a name resolves to.

A name is resolved once. Every address that it has is looked at, one that is forbidden is enough to refuse them all,
and the connection is made to the very address that was looked at: a name that means something else a moment later
(rebinding) leads nowhere. Numbers in odd dresses (decimal, octal, mapped into IPv6) are undressed first.

And for how long: whoever delivers has a deadline, for the look-up and the connection and all that is said on it.
"""

import socket
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from threading import Thread, Timer
from typing import NamedTuple, TypeVar

from shigoto.notify.targets import Undeliverable, Undelivered

# What the library takes for public, by the version of Python, or does not know; a list of our own is the same anywhere.
FORBIDDEN4 = tuple(map(IPv4Network, (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
    "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
)))  # fmt: skip
# Of IPv6 only what is given out to the public, and of that not what leads elsewhere: Teredo, ORCHID, documentation.
PUBLIC6 = IPv6Network("2000::/3")
FORBIDDEN6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "3fff::/20")))
# Numbers of IPv4 inside of IPv6: what they lead to is what counts.
NAT64 = IPv6Network("64:ff9b::/96")

T = TypeVar("T")


class RemoteAddress(NamedTuple):
    """One address of a host; `scope` is the link that it is on, of IPv6."""

    family: socket.AddressFamily
    host: str
    scope: int = 0


Resolve = Callable[[str, int], Sequence[RemoteAddress]]


def resolve(host: str, port: int) -> list[RemoteAddress]:
    """All addresses of a host, as the system knows them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    addresses: list[RemoteAddress] = []
    for family, _, _, _, address in found:
        if family is socket.AF_INET:
            addresses.append(RemoteAddress(family, str(address[0])))
        elif family is socket.AF_INET6:
            addresses.append(RemoteAddress(family, str(address[0]), int(address[-1])))
    return addresses


def connect(
    host: str, port: int, *, deadline: float, internal: bool, resolving: Resolve = resolve
) -> socket.socket:
    """A connection to a host, if all of its addresses are allowed; by `deadline`, of the monotonic clock.

    Raises Undeliverable if one is not, Undelivered if nobody answers.
    """
    try:
        addresses = by(deadline, lambda: list(resolving(host, port)))
    except TimeoutError:
        raise Undelivered("The address of the host was not found in time.") from None
    except (OSError, UnicodeError) as error:
        raise Undelivered(f"The host has no address: {type(error).__name__}.") from None
    if not addresses:
        raise Undelivered("The host has no address.")
    for address in addresses:
        if not internal and is_forbidden(address.host):
            raise Undeliverable("The host has an address in a network that is not public.")
    trouble: OSError | None = None
    for tried, address in enumerate(addresses):
        # An address that swallows everything leaves the others their share.
        patience = (deadline - time.monotonic()) / (len(addresses) - tried)
        if patience <= 0:
            break
        connection = socket.socket(address.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            connection.settimeout(patience)
            connection.connect(_address(address, port))
        except OSError as error:
            connection.close()
            trouble = error
        else:
            return connection
    reason = "not in time" if trouble is None else type(trouble).__name__
    raise Undelivered(f"The host could not be reached: {reason}.")


def by(deadline: float, ask: Callable[[], T]) -> T:
    """What the system's resolver answers, which takes no time limit: it is asked in a thread, and left to itself at the
    deadline. Raises TimeoutError, and whatever the answer is."""
    answer: Future[T] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=wait, name="shigoto-resolve", daemon=True).start()
    return answer.result(max(0.0, deadline - time.monotonic()))


@contextmanager
def cut_at(deadline: float, line: socket.socket) -> Generator[None]:
    """Let the line be cut at the deadline: a server may trickle for ever, one byte within each time-out. That is done
    by a handle of its own, since TLS takes the other."""
    with closing(line.dup()) as handle:
        alarm = Timer(max(0.0, deadline - time.monotonic()), _cut, (handle,))
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()


def _cut(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


def _address(address: RemoteAddress, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    if address.family is socket.AF_INET6:
        return address.host, port, 0, address.scope
    return address.host, port


def is_forbidden(text: str) -> bool:
    """Whether an address is anything but one of the public Internet."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return True
    if isinstance(address, IPv6Address):
        inner = _inside(address)
        if inner is None:
            return (
                address not in PUBLIC6 or not address.is_global or any(address in each for each in FORBIDDEN6)
            )
        address = inner
    return not address.is_global or any(address in each for each in FORBIDDEN4)


def _inside(address: IPv6Address) -> IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else None
