"""The text of an error is the same whether its places were described before or not."""

from collections.abc import Callable

import pytest

from shigoto.worker import endings
from shigoto.worker.endings import describe


def divide(number: int) -> float:
    return 1 / number


def over_two_lines() -> None:
    print(
        divide(
            0,
        )
    )


def with_a_note() -> None:
    error = ValueError("x")
    error.add_note("a note")
    raise error


def in_made_code() -> None:
    exec(compile("def made():\n  raise RuntimeError('made')\nmade()", "<made>", "exec"))


def in_a_lambda() -> None:
    max([1], key=lambda number: {2: number}[number])


def unknown_name() -> None:
    numbr  # type: ignore[name-defined] # noqa: B018, F821


def recursive(depth: int = 10) -> None:
    if depth:
        recursive(depth - 1)
    raise ValueError("deep")


def chained() -> None:
    try:
        divide(0)
    except ZeroDivisionError as error:
        raise ValueError("chained") from error


@pytest.mark.parametrize(
    "fail",
    [over_two_lines, with_a_note, in_made_code, in_a_lambda, unknown_name, recursive, chained],
)
def test_the_quick_text_is_the_slow_one(fail: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        fail()

    quick = [describe(raised.value), describe(raised.value)]
    monkeypatch.setattr(endings, "_stands_alone", lambda _: False)

    assert quick == [describe(raised.value)] * 2
