"""A file system of the kind that programs provide (FUSE): an empty folder under whatever name of a kind is wanted.

It answers what is asked of a folder in which nothing is, refuses everything else, and remembers what it refused.
"""

import ctypes
import errno
import os
import struct
import threading
from pathlib import Path
from types import TracebackType

LOOKUP, FORGET, GETATTR, INIT, INTERRUPT, DESTROY, BATCH_FORGET = 1, 2, 3, 26, 36, 38, 42
HARMLESS = {LOOKUP, GETATTR, INIT, DESTROY, 15, 17, 22, 27, 28, 29, 34, 44}  # those that only look
HEADER = struct.Struct("<IIQQIIII")
ROOT_FOLDER = struct.pack(
    "<QIIQQQQQQIIIIIIIIII", 60, 0, 0, 1, *([0] * 5), 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0
)
HELLO = struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0, *([0] * 7))
DETACH = 2

libc = ctypes.CDLL(None, use_errno=True)


class EmptyFolder:
    """Mounted while the block runs, in our own mount namespace. Raises OSError where that may not be."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = os.fsencode(folder), kind
        self.refused: list[int] = []  # the numbers of the operations

    def __enter__(self) -> "EmptyFolder":
        self._device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        if libc.mount(b"faults", self._folder, self._kind.encode(), 0, options.encode()) != 0:
            number = ctypes.get_errno()
            os.close(self._device)
            raise OSError(number, os.strerror(number))
        self._thread = threading.Thread(target=self._serve, name="faults-fuse", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        libc.umount2(self._folder, DETACH)
        self._thread.join(5)
        os.close(self._device)

    def _serve(self) -> None:
        while True:
            try:
                asked = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):  # the question was taken back
                    continue
                return  # unmounted
            _, operation, unique, *_ = HEADER.unpack_from(asked)
            if operation not in (FORGET, BATCH_FORGET, INTERRUPT):
                self._answer(operation, unique)

    def _answer(self, operation: int, unique: int) -> None:
        answers = {INIT: HELLO, GETATTR: ROOT_FOLDER, DESTROY: b""}
        answer, number = answers.get(operation, b""), 0
        if operation not in answers:
            number = -errno.ENOENT if operation == LOOKUP else -errno.ENOSYS
            if operation not in HARMLESS:
                self.refused.append(operation)
        os.write(self._device, struct.pack("<IiQ", 16 + len(answer), number, unique) + answer)
