"""Callers: from a token to a caller, or on a machine of one's own, anybody.

    Authorization: Bearer shg_ID_SECRET     the only way to say who one is: no cookies, nothing in the address

A token that is wrong, unknown, expired or revoked is refused in one and the same way, and after ten such refusals in a
minute an address is told to wait; whoever has a valid token is never told so. What was revoked opens nothing after two
seconds, nor does it hear what it began to wait for before: for so long the tokens of the store are remembered, and
never longer, also not while the store is away.

Without a token somebody gets in only if all of this is so (and then may do everything):

    the service was told to, because it listens on a loopback address only
    no token is stored: the first one locks the door
    the connection comes from a loopback address, and nothing in the request looks as if a proxy had handed it on
    it was sent to a loopback name, by no web page of another origin (DNS rebinding, forged requests)

A proxy that speaks as a program on this machine would cannot be told from one: whoever puts one before the service
makes a token first.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import urlsplit

from fastapi import Depends, Request
from msgspec import Struct

from shigoto.model.errors import AuthLimited, Forbidden, TokenInvalid, TokenMissing
from shigoto.model.service import Scope, Token, read_token, token_matches
from shigoto.model.time import Millis

if TYPE_CHECKING:
    from shigoto.server.service import Service

logger = logging.getLogger("shigoto.server")

REMEMBERED_FOR = 2.0  # seconds: so long a revoked token may still open
UNKNOWN_AFTER = 0.25  # seconds that the tokens must be old for a stranger's to be looked up anew
MOST_FAILURES, WITHIN = 10, 60.0  # of one address, in seconds
MOST_ADDRESSES = 10_000
MOST_HEADER = 200  # letters of a header that may be a token

# What proxies add, by habit or when they are told to; all of these headers mean that there is one.
OF_PROXIES = frozenset(
    {
        "via",
        "forwarded",
        "x-real-ip",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-original-forwarded-for",
        "x-original-host",
        "x-proxyuser-ip",
        "true-client-ip",
        "cf-connecting-ip",
        "cf-ray",
        "fastly-client-ip",
        "fly-client-ip",
        "x-azure-clientip",
        "x-appengine-user-ip",
        "x-envoy-external-address",
        "x-amzn-trace-id",
        "x-cloud-trace-context",
    }
)
LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})
INVALID = "The token is not valid."
MISSING = "A token is needed: send it as Authorization: Bearer TOKEN. `shigoto token create` makes one."


class Caller(Struct, frozen=True):
    """Who a request comes from. Without a token it is somebody on this machine, who may do everything."""

    token: Token | None
    actor: str  # for the audit

    def may(self, *scopes: Scope) -> bool:
        return self.token is None or self.token.may(*scopes)

    @property
    def restricted(self) -> bool:
        """Whether there are queues or tenants that are none of the caller's business."""
        return self.token is not None and (self.token.queues is not None or self.token.tenant is not None)


ANYBODY = Caller(None, "anonymous")


class Failures:
    """How often each address has failed of late. Those that have not for the longest time are forgotten first."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._of: OrderedDict[str, deque[float]] = OrderedDict()

    def add(self, address: str) -> bool:
        """Note a failure. True if that is more than we listen to."""
        now = self._time()
        times = self._of.pop(address, None) or deque[float](maxlen=MOST_FAILURES + 1)
        self._of[address] = times
        if len(self._of) > MOST_ADDRESSES:
            self._of.popitem(last=False)
        times.append(now)
        while times[0] <= now - WITHIN:
            times.popleft()
        return len(times) > MOST_FAILURES


class Auth:
    """The door. For one event loop at a time; `anonymous` says whether anybody may come in without a token at all."""

    def __init__(self, service: "Service", *, anonymous: bool, time: Callable[[], float]) -> None:
        self._service = service
        self._anonymous = anonymous
        self._time = time
        self._tokens: Mapping[str, Token] = {}
        self._read_at = float("-inf")
        self._then: Millis = 0  # store time when they were read
        self._reading: asyncio.Task[None] | None = None
        self._failures = Failures(time)

    async def caller(self, request: Request) -> Caller:
        """Who asks. Raises TokenMissing, TokenInvalid or AuthLimited."""
        said = request.headers.getlist("authorization")
        if not said:
            if await self._open_to(request):
                return ANYBODY
            raise TokenMissing(MISSING)
        token = await self._token(said)
        if token is None:
            self._refuse(address_of(request))
        return Caller(token, f"token:{token.id} ({token.name})")

    async def _token(self, said: list[str]) -> Token | None:
        """The token that the headers name, if it opens anything now."""
        kind, _, text = said[0].partition(" ")
        claimed = read_token(text.strip()) if len(said) == 1 and len(said[0]) <= MOST_HEADER else None
        if claimed is None or kind.lower() != "bearer":
            await self._recall(REMEMBERED_FOR)  # what cannot be a token takes its time, too
            return None
        id, hash = claimed
        await self._recall(REMEMBERED_FOR)
        if id not in self._tokens:
            await self._recall(UNKNOWN_AFTER)
        token = self._tokens.get(id)
        fits = token_matches(token, hash)
        return token if fits and token is not None and token.alive(self._now()) else None

    def _refuse(self, address: str) -> NoReturn:
        if self._failures.add(address):
            raise AuthLimited(
                "Too many requests without a valid token came from this address. Wait a minute."
            )
        logger.warning("A token was refused that came from %s", address)
        raise TokenInvalid(INVALID)

    async def _open_to(self, request: Request) -> bool:
        """Whether the request may come in without a token."""
        if not self._anonymous or not is_at_home(request):
            return False
        await self._recall(REMEMBERED_FOR)
        return not self._tokens

    async def _recall(self, age: float) -> None:
        """See to it that what is known of the tokens is no older than that. Raises StoreError."""
        if self._time() - self._read_at < age:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read(), name="shigoto-tokens")
            self._reading.add_done_callback(heard)
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        engine, asked_at = self._service.engine, self._time()
        stored = await engine.arun(engine.registry.tokens())
        if any(token.expires_at is not None for token in stored):
            self._then = await engine.arun(engine.time())
        self._tokens, self._read_at = {token.id: token for token in stored}, asked_at

    def _now(self) -> Millis:
        """Store time, by which tokens expire; the clock of this machine may be another."""
        return self._then + round((self._time() - self._read_at) * 1000)


def heard(task: "asyncio.Task[Any]") -> None:
    """Whoever waited for the task may be gone, and then nobody else asks what became of it."""
    if not task.cancelled():
        task.exception()


def is_at_home(request: Request) -> bool:
    """Whether a request comes from this machine itself, straight, and from no web page of somebody else."""
    headers = request.headers
    if is_handed_on(request) or request.client is None or not is_loopback(request.client.host):
        return False
    hosts = headers.getlist("host")
    if len(hosts) != 1 or "@" in hosts[0] or not is_loopback(_host_of(f"//{hosts[0]}")):
        return False
    origin = headers.get("origin")
    if origin is not None and urlsplit_or_none(origin) != hosts[0]:
        return False
    return headers.get("sec-fetch-site", "none") in ("same-origin", "none")


def is_handed_on(request: Request) -> bool:
    """Whether it looks as if a proxy had handed the request on. Some that say nothing of it speak HTTP/1.0, as nobody
    else does any more."""
    old = request.scope.get("http_version") == "1.0"
    return old or any(name in OF_PROXIES or name.startswith("x-forwarded-") for name in request.headers)


def urlsplit_or_none(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine and nothing else, without asking anybody."""
    if host.lower().rstrip(".") in LOOPBACK_NAMES:
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def address_of(request: Request) -> str:
    """Where a request comes from, for those who count; of version 6 it is the network, which has room for any number
    of addresses of one and the same."""
    host = "unknown" if request.client is None else request.client.host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"{IPv6Address(int(address) >> 64 << 64)}/64"
    return str(address)


def the_service(request: Request) -> "Service":
    service: Service = request.app.state.service
    return service


async def allowed(request: Request, *scopes: Scope) -> Caller:
    """The caller, who must have one of the scopes. Raises TokenMissing, TokenInvalid, Forbidden …

    Whoever has waited asks again before it answers: the token may have been revoked meanwhile.
    """
    found = await the_service(request).auth.caller(request)
    if not found.may(*scopes):
        raise Forbidden(f"The token has none of the scopes that this needs: {', '.join(scopes)}.")
    return found


def needs(*scopes: Scope) -> Any:
    """A dependency: the caller, who must have one of the scopes."""

    async def caller(request: Request) -> Caller:
        return await allowed(request, *scopes)

    return caller


ASKERS: tuple[Scope, ...] = ("read", "submit")

Reader = Annotated[Caller, Depends(needs("read"))]
Submitter = Annotated[Caller, Depends(needs("submit"))]
Asker = Annotated[Caller, Depends(needs(*ASKERS))]
Admin = Annotated[Caller, Depends(needs("admin"))]
WorkerCaller = Annotated[Caller, Depends(needs("work"))]
