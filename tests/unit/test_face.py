"""The public face: its names, and what importing it costs."""

import subprocess
import sys

import shigoto
from shigoto.model import errors


def test_every_public_name_exists_and_every_error_is_public() -> None:
    raised = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }

    assert shigoto.__all__ == sorted(set(shigoto.__all__), key=lambda name: (not name.isupper(), name))
    assert all(hasattr(shigoto, name) for name in shigoto.__all__)
    assert raised <= set(shigoto.__all__)


def test_importing_the_face_brings_in_neither_a_driver_nor_an_event_loop_nor_the_worker() -> None:
    heavy = ["asyncio", "sqlite3", "click", "pydantic", "multiprocessing", "shigoto.worker", "shigoto.cli"]
    program = f"import sys, shigoto; print([name for name in {heavy} if name in sys.modules])"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "[]"
