"""What commands say about words that no terminal should see."""

import pytest

from tests.unit.commands import Command

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "words",
    [
        ("enqueue", "user_created", "{\x1b[31m}", "1", "x"),
        ("enqueue", "user_created", "--arg", "\x1b[31m"),
        ("enqueue", "user_created", "--queue", "\x9b31m"),
        ("enqueue", "--\x1b]0;title\x07"),
        ("list", "\x1b[2J"),
        ("list", "--limit", "\x1b[2J"),
        ("\x1b[31m",),
    ],
)
def test_an_error_holds_nothing_that_a_terminal_would_take_for_a_command(
    shigoto: Command, words: tuple[str, ...]
) -> None:
    """E49: the message quotes what was written, and nothing more."""
    done = shigoto(*words)

    assert done.code in (1, 2)
    assert all(letter.isprintable() or letter == "\n" for letter in done.err)
    assert "Error" in done.err


@pytest.mark.parametrize(
    "words", [('{"value":' + DEEP,), ("--arg", f"message={{{DEEP}"), ("--arg", f"other={DEEP}")]
)
def test_arguments_that_are_nested_without_an_end_are_refused(
    shigoto: Command, words: tuple[str, ...]
) -> None:
    """E49"""
    done = shigoto("enqueue", "never_heard_of", *words, "--allow-unknown")

    assert done.code in (1, 2)
    assert len(done.err) < 2_000


def test_json_holds_nothing_that_a_terminal_would_take_for_a_command(shigoto: Command) -> None:
    """E49: U+009B begins a command like ESC [ does, and JSON does not ask for its escape."""
    assert shigoto("enqueue", "never_heard_of", '{"value":"\x9b31m\x7f"}', "--allow-unknown").code == 0

    listed = shigoto("list", "--json")

    assert "\\u009b31m\\u007f" in listed.out
    assert all(letter.isprintable() or letter == "\n" for letter in listed.out)
