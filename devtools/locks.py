"""Pins the dependencies with hashes: one file a set, for every platform and Python, without index addresses.

uv's own lock file would name the index of whoever made it, hence plain requirement files.
"""

from collections.abc import Sequence
from pathlib import Path

from devtools.environment import ROOT, Problem, fetch_uv, find_uv, read_pyproject, run

FOLDER = ROOT / "requirements"
HEADER = "# Made by `python3 dev.py lock` from pyproject.toml. Do not edit.\n"


def compile_all(arguments: Sequence[str]) -> None:
    uv = find_uv() or fetch_uv()
    FOLDER.mkdir(exist_ok=True)
    # Every set holds the build backend, for the editable install (devtools/environment.py).
    backend = "\n".join(read_pyproject(ROOT)["build-system"]["requires"])
    project = ["pyproject.toml", "-", *arguments]
    # `rest` comes first and binds the others: the sets share one .venv and must agree.
    same = ["--constraint", "requirements/rest.txt"]
    compile_one(uv, "rest", [*project, "--extra", "rest"], backend)
    compile_one(uv, "dev", [*project, *same, "--extra", "dev"], backend)
    compile_one(uv, "run", [*project, *same], backend)
    compile_one(uv, "image", [*project, *same, "--extra", "postgres", "--extra", "server"], backend)
    compile_one(uv, "docs", [*project, *same, "--extra", "docs"], backend)
    compile_one(uv, "uv", ["-", *arguments], "uv")


def compile_one(uv: Path, name: str, sources: Sequence[str], typed_in: str) -> None:
    output = FOLDER / f"{name}.txt"
    what = ["--universal", "--python-version", "3.11", "--generate-hashes", "--only-binary", ":all:"]
    how = ["--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    run(
        [uv, "pip", "compile", *sources, "--output-file", output, *what, *how],
        f"could not compile requirements/{name}.txt",
        "The message above names the cause.",
        typed_in,
    )
    text = output.read_text(encoding="utf-8").replace(HEADER, "")
    if trace := index_trace(text):
        output.unlink()
        raise Problem(f"requirements/{name}.txt named a package index ({trace!r}), so it was removed.")
    output.write_text(HEADER + text, encoding="utf-8")
    print(f"wrote requirements/{name}.txt")


def index_trace(text: str) -> str | None:
    """The first line that says where packages come from rather than which they are."""
    telling = ("://", " @ ", "--index", "--extra-index", "--find-links", "-i ", "-f ")
    return next((line for line in text.splitlines() if any(sign in line for sign in telling)), None)
