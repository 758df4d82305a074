"""Commands with mounts of their own, which nobody else sees and which end with them."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path


@cache
def namespace() -> list[str] | None:
    """What to put before a command so that it may mount; None where the system does not let us."""
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return None
    ways = [["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]]
    for way in ways if os.geteuid() == 0 else ways[1:]:
        tried = subprocess.run(
            [*way, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
        )
        if tried.returncode == 0:
            return way
    return None


def mount(kind: str, folder: Path, options: str) -> str:
    """Mount something in our own namespace; tells why that is not possible, or nothing."""
    return _mount("-t", kind, "-o", options, kind, str(folder))


def remount(folder: Path, options: str) -> str:
    """Change the options of a mount; tells why that is not possible, or nothing."""
    return _mount("-o", f"remount,{options}", str(folder))


def _mount(*words: str) -> str:
    ended = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    return ended.stderr.strip() or "mount failed" if ended.returncode else ""
