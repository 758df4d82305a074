"""Makes `.venv` from the hashed files in `requirements/`, on any machine with a Python.

The stamp in `.venv` is removed with it and written last, so an install that was interrupted, or made for
another Python or other locks, is thrown away and made again. There are three ways to install, since a bare
Debian has a Python without ensurepip: venv and pip; a uv on PATH; a uv that pip fetches into `.tools`.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
STAMP = VENV / ".shigoto-stamp.json"
SCRIPTS = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = SCRIPTS / ("python.exe" if os.name == "nt" else "python")
# When dev.py itself runs in a venv, the base interpreter builds: `.venv` may be the one that has to go.
BASE_PYTHON: str = getattr(sys, "_base_executable", None) or sys.executable
SETS = ("run", "dev", "rest", "docs")
CONTAINED = {"rest": ("run", "dev"), "dev": ("run",), "docs": ("run",)}


class Problem(Exception):
    """Something the person at the keyboard can act on; shown without a traceback."""


def prepare(wanted: str) -> Path:
    """Make `.venv` hold this set and the package itself in editable form; give the folder of its programs."""
    with only_one_at_a_time():
        stamp = read_stamp(STAMP)
        if not (PYTHON.exists() and is_fresh(stamp, wanted, ROOT, running_python())):
            sets = sets_to_install(stamp, wanted)
            fingerprint = fingerprint_of(ROOT, sets, running_python())
            tell(f"preparing .venv ({', '.join(sets)}); this happens once …")
            known = known_sets(stamp)
            install(
                sets,
                keep=bool(known) and PYTHON.exists() and is_fresh(stamp, known[0], ROOT, running_python()),
            )
            STAMP.write_text(json.dumps({"sets": sets, "fingerprint": fingerprint}), encoding="utf-8")
    return SCRIPTS


def is_fresh(stamp: Mapping[str, object] | None, wanted: str, root: Path, python: str) -> bool:
    sets = known_sets(stamp)
    covered = any(wanted == name or wanted in CONTAINED.get(name, ()) for name in sets)
    return covered and stamp is not None and stamp.get("fingerprint") == fingerprint_of(root, sets, python)


def sets_to_install(stamp: Mapping[str, object] | None, wanted: str) -> list[str]:
    """What is there stays, so that going to and fro installs once; but for sets that another one contains."""
    sets = {wanted, *known_sets(stamp)}
    return sorted(sets - {each for name in sets for each in CONTAINED.get(name, ())})


def known_sets(stamp: Mapping[str, object] | None) -> list[str]:
    sets = stamp.get("sets") if stamp else None
    return [name for name in sets if name in SETS] if isinstance(sets, list) else []


def read_stamp(path: Path) -> dict[str, object] | None:
    try:
        stamp = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) else None


def fingerprint_of(root: Path, sets: Sequence[str], python: str) -> str:
    """Changes with the locks, the package's metadata (names, scripts), the place and the running Python."""
    metadata = {key: value for key, value in read_pyproject(root).items() if key != "tool"}
    digest = hashlib.sha256(f"{python}\n{root}\n{json.dumps(metadata, sort_keys=True)}".encode())
    for name in sets:
        digest.update(lock_file(root, name).read_bytes())
    return digest.hexdigest()


def read_pyproject(root: Path) -> dict[str, Any]:
    path = root / "pyproject.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error


def lock_file(root: Path, name: str) -> Path:
    path = root / "requirements" / f"{name}.txt"
    if not path.exists():
        raise Problem(f"{path} is missing. Restore it, or put uv on PATH and run `python3 dev.py lock`.")
    return path


def running_python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"


@contextlib.contextmanager
def only_one_at_a_time() -> Iterator[None]:
    """Two dev.py in one checkout prepare `.venv` one after the other.

    Installers inherit the lock: when dev.py is killed, it stays taken until the orphan has stopped writing.
    """
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "lock").open("w", encoding="utf-8") as file:
        if sys.platform != "win32":
            import fcntl

            os.set_inheritable(file.fileno(), True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(sets: Sequence[str], *, keep: bool) -> None:
    """Install these sets, beside what `.venv` has already if that is to be kept."""
    if keep:
        STAMP.unlink()
    installer = installer_of_venv() if keep else make_venv()
    for name in sets:
        run(
            # Wheels only: a contributor's machine need not have a compiler.
            [*installer, "--require-hashes", "--only-binary=:all:", "-r", lock_file(ROOT, name)],
            f"could not install requirements/{name}.txt",
            "If it is the network or the index: check the connection and the configuration of pip (or uv), "
            "and run this again.\nIf a hash does not match: do not go on; find out who changed the file.",
        )
    run(
        # The build backend is in the hashed files; with build isolation it would be downloaded unchecked.
        [*installer, "--no-deps", "--no-build-isolation", "--editable", "."],
        "could not install the package itself",
        "The message above names the cause; most often it is a mistake in pyproject.toml.",
    )


def installer_of_venv() -> list[str | Path]:
    """Return the command that installs into the `.venv` that is there, made by whichever way."""
    if (SCRIPTS / "pip").exists() or (SCRIPTS / "pip.exe").exists():
        return [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [find_uv() or fetch_uv(), "pip", "install", "--quiet", "--python", PYTHON]


def make_venv() -> list[str | Path]:
    """Make `.venv` anew and empty; give the command that installs into it."""
    remove(VENV)
    uv = find_uv()
    way = choose_way(has("venv") and has("ensurepip"), uv is not None, has("pip"))
    if way == "venv":
        made = subprocess.run([BASE_PYTHON, "-m", "venv", VENV], capture_output=True, text=True, check=False)
        if made.returncode == 0:
            return installer_of_venv()
        tell(f"python -m venv did not work, trying uv. It said:\n{made.stdout}{made.stderr}")
        remove(VENV)
        way = choose_way(False, uv is not None, has("pip"))
    if uv is None:
        uv = fetch_uv()
    run([uv, "venv", "--quiet", "--python", BASE_PYTHON, VENV], "could not make .venv", "See uv's message.")
    return installer_of_venv()


def choose_way(has_venv: bool, has_uv: bool, has_pip: bool) -> str:
    if has_venv:
        return "venv"
    if has_uv:
        return "uv"
    if has_pip:
        return "fetch uv"
    raise Problem(
        f"{BASE_PYTHON} has neither venv with ensurepip nor pip, and there is no uv on PATH, so nothing can "
        "be installed.\nGet one of them; on Debian and Ubuntu: apt-get install python3-venv"
    )


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def find_uv() -> Path | None:
    for found in (shutil.which("uv"), shutil.which("uv", path=uv_folder() / "bin")):
        # A version manager may have put a shim on PATH with nothing behind it: only an answer counts.
        if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
            return Path(found)
    return None


def fetch_uv() -> Path:
    tell("fetching uv into .tools …")
    folder = uv_folder()
    remove(folder)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore"]
    locked = ["--require-hashes", "--only-binary=:all:"]
    run(
        [*pip, *locked, "--target", folder, "-r", lock_file(ROOT, "uv")],
        "could not fetch uv",
        "Check the connection and the configuration of pip, or install python3-venv or uv by other means.",
    )
    uv = find_uv()
    if uv is None:
        raise Problem(f"uv was put into {folder}, but it does not start. Install python3-venv instead.")
    return uv


def uv_folder() -> Path:
    """Named after the lock that pins uv, so that a new pin fetches a new uv."""
    pin = ROOT / "requirements" / "uv.txt"
    return TOOLS / f"uv-{hashlib.sha256(pin.read_bytes()).hexdigest()[:12] if pin.exists() else 'none'}"


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def run(command: Sequence[str | Path], failure: str, remedy: str, typed_in: str | None = None) -> None:
    # Without this, uv answers a Python it does not know by downloading one.
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, input=typed_in, text=True, check=False, close_fds=False
    )
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise Problem(f"{failure}: `{words}` ended with exit code {done.returncode}.\n{remedy}")


def tell(message: str) -> None:
    print(f"dev.py: {message}", file=sys.stderr, flush=True)
