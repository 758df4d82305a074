"""Messages on a stream: whatever the pieces they arrive in, each comes out once, whole and in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from shigoto.worker.process import LONGEST_MESSAGE, BrokenLine, Inbox, encode


class Text(Struct, frozen=True, tag=True):
    text: str


class Number(Struct, frozen=True, tag=True):
    number: int


Message = Text | Number

messages = st.lists(st.builds(Text, st.text()) | st.builds(Number, st.integers(0, 2**60)), max_size=8)


@given(messages, st.randoms(use_true_random=False))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(
    sent: list[Message], random: object
) -> None:
    stream = b"".join(map(encode, sent))
    inbox = Inbox[Message](Message)
    received: list[Message] = []
    while stream:
        count = random.randint(1, 40)  # type: ignore[attr-defined]
        received += inbox.feed(stream[:count])
        stream = stream[count:]

    assert received == sent


def test_a_message_is_not_told_before_it_is_whole() -> None:
    inbox = Inbox[Message](Message)
    data = encode(Text("hello"))

    assert inbox.feed(data[:-1]) == []
    assert inbox.feed(data[-1:]) == [Text("hello")]


@pytest.mark.parametrize(
    "nonsense",
    [b"nonsense", (LONGEST_MESSAGE + 1).to_bytes(4, "big"), b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x01\x80"],
)
def test_what_nobody_has_sent_is_refused(nonsense: bytes) -> None:
    with pytest.raises(BrokenLine):
        Inbox[Message](Message).feed(nonsense)
