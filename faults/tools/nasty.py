"""Input that somebody, some day, will hand in: texts, values, JSON and options, from a list and by chance.

A seed gives the same again. Nothing here needs more than a few megabytes.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

TEXTS: tuple[str, ...] = (
    "",
    " ",
    "\n",
    "\t\r\n",
    "\0",
    "a\0b",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[H",
    "\x1bP+q544e\x1b\\",
    "\x9b31m",
    "\x9d0;title\x9c",
    "\x07\x08\x0b\x0c\x7f",
    "\x1e",
    "a\x1eb\x1ec",
    "\x1c\x1d\x1f\x85\u2028\u2029",
    "\ud800",
    "\udfff\ud800",
    "ok\udcffok",
    "\ufeffbom",
    "\ufffe\uffff",
    "\u202egnirts\u202c",
    "\u2066\u2067\u2069",
    "\u200b\u200c\u200d\u2060",
    "e\u0301" * 20,
    "Z\u0351\u036b\u0343\u036a\u0302" * 30,
    "仕事",
    "👩‍👩‍👧‍👦",
    "\U0010ffff",
    "ﷺ" * 50,
    "ｆｕｌｌ　ｗｉｄｔｈ",
    "İıſK",
    "' OR 1=1 --",
    "'; DROP TABLE shigoto_job; --",
    'x" UNION SELECT * FROM shigoto_worker --',
    "%' ESCAPE '%",
    "_%_%",
    "$(touch /tmp/pwned)",
    "`id`",
    "; rm -rf / #",
    "&& echo && false",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "javascript:alert(1)",
    "&lt;&#x27;&amp;",
    "../../etc/passwd",
    "..\\..\\windows",
    "/dev/zero",
    "C:\\con",
    "file:///etc/shadow",
    "sqlite:///elsewhere.db",
    "%s%s%s%n",
    "%(message)s",
    "{0.__class__.__mro__}",
    "{",
    "}{",
    "{{}}",
    "${jndi:ldap://x}",
    "\\",
    "\\u0000",
    "\\ud800",
    "\\x1b[31m",
    "=cmd|' /C calc'!A0",
    "null",
    "true",
    "NaN",
    "-Infinity",
    "1e999",
    "0x10",
    "1_000",
    "٤٢",
    "-1",
    "--help",
    "--",
    "-",
    "#42",
    "queue:mail",
    "args.a:1",
    'error:"x',
    "since:-1d",
    "since:99999999999999w",
    "a=b",
    "=",
    "[]",
    "{}",
    '{"a":1,"a":2}',
    '\ufeff{"value":1}',
    "x" * 101,
    "x" * 513,
    "x" * 5_000,
    "語" * 600,
)

# JSON as people write it on a command line, and worse.
DOCUMENTS: tuple[str, ...] = (
    "{}",
    '{"value":1}',
    '{"value":1,"value":2}',
    '{"value":NaN}',
    '{"value":Infinity}',
    '{"value":1e999}',
    '{"value":-0.0}',
    '{"value":123456789012345678901234567890}',
    '{"value":1' + "0" * 5_000 + "}",
    '{"value":0.1000000000000000055511151231257827}',
    '{"value":"\\ud800"}',
    '{"value":"\\u0000"}',
    '{"value":"\x1b[31m"}',
    '{"value":"\x1e"}',
    '{"value":"\\u001e"}',
    '{"value":"\ud800"}',
    '\ufeff{"value":1}',
    '{"value":1}\x00',
    '{"value":1}}',
    '{"value":1,}',
    "{'value':1}",
    '{"value":1} {"value":2}',
    '{"\\u0000":1}',
    '{"":1}',
    '{"value":' + "[" * 63 + "]" * 63 + "}",
    '{"value":' + "[" * 65 + "]" * 65 + "}",
    '{"value":' + "[" * 5_000 + "]" * 5_000 + "}",
    '{"value":' + "[" * 100_000,
    '{"value":' + '{"a":' * 5_000 + "1" + "}" * 5_000 + "}",
    '{"value":"' + "x" * 1_100_000 + '"}',
    '{"value":"' + "\\u0001" * 100_000 + '"}',
    "[1,2]",
    '"text"',
    "1",
    "",
    "{",
    "\x00",
    "\x1b[31m",
    '{"__class__":"x","__proto__":{}}',
    '{"self":1}',
    '{"ctx":1,"value":2}',
    '{"value":[' + "1," * 50_000 + "1]}",
)

NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    True,
    False,
    2**15,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    10**400,
    10**5_000,
    0.0,
    -0.0,
    1.5,
    1e308,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
    Decimal("NaN"),
    Decimal("1e999999"),
    1j,
)

MOMENTS: tuple[Any, ...] = (
    datetime(1, 1, 1),  # noqa: DTZ001
    datetime(9999, 12, 31, 23, 59, 59),  # noqa: DTZ001
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-23))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    datetime(1969, 12, 31, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    datetime(2024, 2, 29),  # noqa: DTZ001
    date(2024, 2, 29),
    timedelta.max,
    timedelta.min,
    timedelta(0),
    timedelta(microseconds=1),
    timedelta(days=40_000),
)


class Ghost:
    """An object that answers nothing without an error."""

    def __repr__(self) -> str:
        raise RuntimeError("no shape")

    def __str__(self) -> str:
        raise RuntimeError("no words")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("incomparable")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __len__(self) -> int:
        raise RuntimeError("no length")


class Sly(str):
    """A string whose methods lie."""

    def __str__(self) -> str:
        return "other\x1b[31m"

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe"


class Nasty:
    """Draws; each kind of thing from a list of the worst first, and made up by chance after."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def text(self) -> str:
        """Any text."""
        kind = self.random.random()
        if kind < 0.6:
            return self.random.choice(TEXTS)
        if kind < 0.7:
            return self.random.choice(TEXTS) + self.random.choice(TEXTS)
        if kind < 0.72:
            return self.random.choice(TEXTS) * self.random.choice((1, 100, 3_000))
        return "".join(chr(self._letter()) for _ in range(self.random.randrange(40)))

    def _letter(self) -> int:
        low, high = self.random.choice(
            ((0, 0x20), (0x20, 0x7F), (0x7F, 0x100), (0xD7F0, 0xE010), (0, 0x110000))
        )
        return self.random.randrange(low, high)

    def scalar(self) -> Any:
        """Anything that is not made of others."""
        pick: Callable[[], Any] = self.random.choice(
            (
                self.text,
                self.text,
                lambda: self.random.choice(NUMBERS),
                lambda: self.random.choice(MOMENTS),
                lambda: None,
                lambda: self.random.choice((b"", b"\xff\xfe", b"\0" * 100, bytearray(3), memoryview(b"x"))),
                lambda: self.random.choice(
                    (object, Ghost(), Sly("sly"), UUID(int=0), ..., NotImplemented, self)
                ),
                lambda: self.random.choice(
                    (range(3), iter(()), (number for number in (1, 2)), lambda: None, {1, 2}, print)
                ),
            )
        )
        return pick()

    def value(self, depth: int = 3) -> Any:
        """Any value, mostly one that JSON could hold."""
        kind = self.random.random()
        if depth == 0 or kind < 0.4:
            return self.scalar()
        if kind < 0.5:
            return self._monster()
        count = self.random.randrange(4)
        if kind < 0.75:
            return [self.value(depth - 1) for _ in range(count)]
        if kind < 0.95:
            return {self.text(): self.value(depth - 1) for _ in range(count)}
        keys = (1, None, 1.5, True, (), b"x", UUID(int=1))
        return {self.random.choice(keys): self.value(depth - 1) for _ in range(count)}

    def _monster(self) -> Any:
        """Too deep, too large, or without an end."""
        which = self.random.randrange(6)
        if which == 0:
            return nested(self.random.choice((62, 63, 64, 65, 500, 50_000)))
        if which == 1:
            ring: list[Any] = [1]
            ring.append(ring)
            return ring
        if which == 2:
            loop: dict[str, Any] = {}
            loop["self"] = loop
            return loop
        if which == 3:
            return "x" * self.random.choice((1_048_570, 1_048_576, 3_000_000))
        if which == 4:
            return [0] * self.random.choice((1_000, 600_000))
        return {str(number): number for number in range(self.random.choice((10, 20_000)))}

    def of(self, *choices: Any) -> Any:
        """One of these, or something that is none of them."""
        return self.random.choice(choices) if self.random.random() < 0.5 else self.scalar()

    def some(self, choices: Sequence[str], most: int) -> list[str]:
        """A few of these, each once."""
        return self.random.sample(list(choices), self.random.randint(0, most))

    def document(self) -> str:
        """JSON, or what somebody takes for it."""
        if self.random.random() < 0.6:
            return self.random.choice(DOCUMENTS)
        text = self.random.choice(DOCUMENTS[:20])
        at = self.random.randrange(len(text) + 1)
        return text[:at] + self.text()[:50] + text[at + self.random.randrange(3) :]


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value
