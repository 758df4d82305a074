r"""The terminal as the live view holds it: keys one by one, signals as events, and everything given back at the end.

A key is read from bytes:

    ESC [ … letter       a key, or something that the terminal tells of itself, which is none
    ESC [ M and 3 bytes  the mouse, as old terminals tell of it
    ESC O letter         a key
    ESC ] P _ ^ X …      a message of the terminal, up to ESC \ or BEL
    ESC and any other    that key together with Alt: nothing here is meant by it

Terminals answer questions of programs that have long ended, and a mouse may be left switched on: whatever is no key
must yield none, in whatever pieces it comes, since keys act on jobs.
"""

import codecs
import os
import re
import select
import signal
import termios
import threading
import time
import tty
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

from shigoto.cli.watch import Canvas

ESCAPE = b"\x1b"
SEQUENCE = re.compile(
    rb"\x1b(?:"
    rb"\[M[\s\S]{3}"
    rb"|\[\[[A-E]"  # a function key of the Linux console
    rb"|\[(?P<values>[0-?]*)(?P<between>[ -/]*)(?P<final>[@-~])"
    rb"|O(?P<alone>[0-9;]*[@-~])"
    rb"|(?P<message>[]P_^X])"
    rb"|(?![\[O\x1b])(?:[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}|[\s\S]))"
)
UNFINISHED = re.compile(
    rb"\x1b(?:"
    rb"\[M[\s\S]{0,2}"
    rb"|\[\["
    rb"|\[[0-?]*[ -/]*"
    rb"|O[0-9;]*"
    rb"|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})?\Z"
)
BROKEN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|O[0-9;]*)")
# Another escape ends a message as well, and begins what follows.
MESSAGE_ENDS = re.compile(rb"[\x07\x18\x1a]|\x1b\\|(?=\x1b[^\\])")
PASTE_ENDS = b"\x1b[201~"
LONGEST = 4_000  # bytes of a paste

KEY_PATIENCE = 0.05  # seconds in which the rest of a key follows its escape
PATIENCE = 1.0  # seconds for the rest of anything that cannot be the escape key, or a letter with Alt

LETTERS = {b"A": "up", b"B": "down", b"C": "right", b"D": "left", b"F": "end", b"H": "home", b"Z": "back_tab"}
LETTERS_ALONE = {**LETTERS, b"M": "enter"}  # of the number pad
NUMBERS = {b"1": "home", b"4": "end", b"5": "page_up", b"6": "page_down", b"7": "home", b"8": "end"}
CONTROLS = {
    "\t": "tab",
    "\n": "enter",
    "\r": "enter",
    "\x08": "backspace",
    "\x7f": "backspace",
    "\x0c": "redraw",
    "\x15": "clear",
    "\x03": "interrupt",  # where the terminal does not make a signal of it
}


ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
END_PATIENCE = 1.0  # seconds for an end in good order, before another signal ends it at once
WATCHED = (*ENDS, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

Handler = Callable[[int, FrameType | None], Any] | int | None


class Key(NamedTuple):
    """One key: the letter itself, or a name of more than one letter. Text that was pasted is one key, `paste`."""

    name: str
    text: str = ""


class Keys:
    """Bytes as they come in, keys as they are complete."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = b""
        self._in_message = False
        self._pasted: bytes | None = None

    @property
    def patience(self) -> float | None:
        """For how many seconds to wait for the rest of what has begun; None if nothing has."""
        if self._pasted is not None or not (self._rest or self._in_message):
            return None
        return KEY_PATIENCE if len(self._rest) <= 2 and not self._in_message else PATIENCE

    def feed(self, some: bytes) -> list[Key]:
        """The keys that are complete now."""
        some, self._rest = self._rest + some, b""
        keys: list[Key] = []
        while some:
            if self._pasted is not None:
                some = self._paste(self._pasted + some, keys)
            elif self._in_message:
                some = self._message(some)
            elif some.startswith(ESCAPE):
                some = self._sequence(some, keys)
            else:
                some = self._letters(some, keys)
        return keys

    def give_up(self) -> list[Key]:
        """Nothing more has come: an escape by itself was the escape key, and anything else was nothing."""
        if self.patience is None:
            return []
        alone = self._rest == ESCAPE and not self._in_message
        self._rest, self._in_message = b"", False
        return [Key("escape")] if alone else []

    def _sequence(self, some: bytes, keys: list[Key]) -> bytes:
        if UNFINISHED.match(some):
            self._rest = some
            return b""
        if match := SEQUENCE.match(some):
            self._meet(match, keys)
            return some[match.end() :]
        if match := BROKEN.match(some):
            return some[match.end() :]
        keys.append(Key("escape"))  # another escape follows
        return some[1:]

    def _meet(self, match: re.Match[bytes], keys: list[Key]) -> None:
        if match["message"]:
            self._in_message = True
        elif match["alone"]:
            self._add(LETTERS_ALONE.get(match["alone"]), keys)
        elif match["final"] and not match["between"] and match["values"][:1] not in (b"<", b"=", b">", b"?"):
            number = match["values"].partition(b";")[0]  # after it come shift, alt and the like
            if match["final"] != b"~":
                self._add(LETTERS.get(match["final"]), keys)
            elif number == b"200":
                self._pasted = b""
            else:
                self._add(NUMBERS.get(number), keys)

    def _add(self, name: str | None, keys: list[Key]) -> None:
        if name is not None:
            keys.append(Key(name))

    def _letters(self, some: bytes, keys: list[Key]) -> bytes:
        some, escape, rest = some.partition(ESCAPE)
        for letter in self._decoder.decode(some, final=bool(escape)):
            if letter in CONTROLS:
                keys.append(Key(CONTROLS[letter]))
            elif letter.isprintable():
                keys.append(Key(letter))
        return escape + rest

    def _message(self, some: bytes) -> bytes:
        match = MESSAGE_ENDS.search(some)
        if match is None:
            self._rest = ESCAPE if some.endswith(ESCAPE) else b""
            return b""
        self._in_message = False
        return some[match.end() :]

    def _paste(self, whole: bytes, keys: list[Key]) -> bytes:
        pasted, end, rest = whole.partition(PASTE_ENDS)
        if not end:
            # Of a paste without end only its beginning is kept, and what may be the beginning of the mark.
            self._pasted = whole if len(whole) <= LONGEST else whole[: LONGEST - 8] + whole[-8:]
            return b""
        self._pasted = None
        keys.append(Key("paste", pasted.decode("utf-8", "replace")))
        return rest


class Terminal:
    """A terminal whose keys come unechoed, with a canvas on its whole screen. Only for the main thread.

    `wake` may be called from any thread, and ends a wait.
    """

    def __init__(self, keyboard: int, canvas: Canvas) -> None:
        self._keyboard = keyboard
        self._keys = Keys()
        self._signals: set[int] = set()
        self._former: dict[int, Handler] = {}
        self._told_to_end: float | None = None
        self._heard = 0.0  # when the last keys came
        # The lock keeps a late thread from writing into whatever file has got the number of the closed pipe.
        self._pressing = threading.Lock()
        self._given_back = False
        self._bell, self._button = os.pipe()
        for end in (self._bell, self._button):
            os.set_blocking(end, False)
        self._modes = termios.tcgetattr(keyboard)
        self._former_wakeup = -1
        self.canvas = canvas
        self.gone = False

    def __enter__(self) -> "Terminal":
        self._former_wakeup = signal.set_wakeup_fd(self._button, warn_on_full_buffer=False)
        for number in WATCHED:
            # One that is ignored (by nohup, say, or by a shell without job control) stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._former[number] = signal.signal(number, self._note)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._former_wakeup)
        with self._pressing:
            os.close(self._bell)
            os.close(self._button)
            self._given_back = True

    def wake(self) -> None:
        """End the wait that is under way, or the next one; nothing if the terminal was given back."""
        with self._pressing, suppress(BlockingIOError):  # a full pipe wakes as well
            if not self._given_back:
                os.write(self._button, b"\0")

    def wait(self, seconds: float) -> list[Key]:
        """Wait for keys, signals, a wake or the end of the time, whatever comes first; the keys that came."""
        patience = self._keys.patience
        left = seconds if patience is None else self._heard + patience - time.monotonic()
        ready, _, _ = select.select([self._keyboard, self._bell], [], [], max(0.0, min(seconds, left)))
        if self._bell in ready:
            with suppress(BlockingIOError):
                os.read(self._bell, 65_536)
        if self._keyboard in ready:
            self._heard = time.monotonic()
            return self._keys.feed(self._read())
        is_late = patience is not None and time.monotonic() >= self._heard + patience
        return self._keys.give_up() if is_late else []

    def draw(self, lines: Sequence[str]) -> None:
        """Draw the lines, if there is still somewhere to draw them."""
        try:
            self.canvas.draw(lines)
        except OSError:
            self.gone = True

    def signals(self) -> set[int]:
        """The signals that have come since the last time."""
        come, self._signals = self._signals, set()
        return come

    def suspend(self) -> None:
        """Give the terminal back and stop, as Ctrl-Z asks, until somebody says to go on."""
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._note)
        self._take()

    def take_again(self) -> None:
        self._take()

    def _read(self) -> bytes:
        try:
            some = os.read(self._keyboard, 4_096)
        except OSError:  # what Linux says of a terminal that was closed
            some = b""
        self.gone = self.gone or not some
        return some

    def _take(self) -> None:
        try:
            tty.setcbreak(self._keyboard, termios.TCSADRAIN)
            self.canvas.enter()
        except (termios.error, OSError):  # it was closed
            self.gone = True

    def _give_back(self) -> None:
        self.canvas.leave()
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signals.add(number)
        if number not in ENDS:
            return
        now = time.monotonic()
        if self._told_to_end is None:
            self._told_to_end = now
        elif now - self._told_to_end > END_PATIENCE:
            self._end_at_once(number)

    def _end_at_once(self, number: int) -> None:
        """A terminal that takes no output holds us in the middle of a write, and every signal only begins it anew."""
        self.canvas.abandon()
        with suppress(termios.error):
            termios.tcsetattr(self._keyboard, termios.TCSANOW, self._modes)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
