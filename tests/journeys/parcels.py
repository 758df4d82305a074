"""The package as people get it: built without a network, and installed where nothing else of ours is."""

import os
import shlex
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from dev import ROOT
from devtools.environment import find_uv


class Parcels(Struct, frozen=True):
    """What a release consists of."""

    wheel: Path
    sdist: Path


def build(source: Path, target: Path) -> Parcels:
    """Both, made by the build backend itself: a front end would want to download it first."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(target)]
    subprocess.run(words, cwd=source, check=True, capture_output=True, timeout=100)
    [wheel], [sdist] = target.glob("*.whl"), target.glob("*.tar.gz")
    return Parcels(wheel, sdist)


def unpack(sdist: Path, target: Path) -> Path:
    """The one folder that is in a source archive."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 or newer
        archive.extractall(target)
    [folder] = target.iterdir()
    return folder


def contents(wheel: Path) -> dict[str, int]:
    """The files in a wheel, and their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def text_in(wheel: Path, ending: str) -> str:
    """The one file in a wheel whose name ends like this."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(ending)]
        return archive.read(name).decode()


class Installed:
    """An environment of its own with the wheel in it, and the libraries that it needs within reach."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.bin = folder / "bin"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
        subprocess.run([*self._installer(), wheel], check=True, capture_output=True, timeout=60)
        [packages] = folder.glob("lib/python*/site-packages")
        # Path entries in the folders named here are not followed, so an editable install of ours stays out of sight.
        libraries = {str(Path(module.__file__ or "").parents[1]) for module in (click, msgspec)}
        (packages / "libraries.pth").write_text("\n".join(libraries))
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SHIGOTO_", "PYTHONPATH")) and name != "WORKER_COUNT"
        }
        self.environment["PATH"] = f"{self.bin}{os.pathsep}{self.environment.get('PATH', '')}"

    def _installer(self) -> list[str | Path]:
        """What puts a wheel into it: the pip of the environment we run in, or uv where there is none."""
        where = ["install", "--no-index", "--no-deps"]
        if find_spec("pip") is not None:
            return [sys.executable, "-m", "pip", "--python", self.bin / "python", *where]
        uv = find_uv()
        assert uv is not None, "neither pip nor uv is here"
        return [uv, "pip", *where, "--offline", "--python", self.bin / "python"]

    def run(self, words: str, folder: Path, code: int = 0) -> str:
        """What a command prints, as it is typed at a prompt."""
        done = subprocess.run(
            shlex.split(words),
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def start(self, words: list[str], folder: Path, **environment: str) -> "subprocess.Popen[bytes]":
        """A program that runs on; what it says is in the file `log`."""
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                words,
                cwd=folder,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def instructions(containerfile: Path = ROOT / "Containerfile") -> list[tuple[str, str]]:
    """The instructions of a container file, as (NAME, the rest)."""
    lines = [line for line in containerfile.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    found = [line.partition(" ") for line in joined if line.strip()]
    return [(name.upper(), rest.strip()) for name, _, rest in found]


def settings(unit: Path) -> dict[tuple[str, str], str]:
    """The settings of a systemd unit, by (section, name)."""
    found: dict[tuple[str, str], str] = {}
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[section, name] = value
    return found
