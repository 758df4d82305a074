"""What the type checkers say of a user's code: nothing where it is right, an error on each wrong line.

Lines that must be refused end in `# expect: mypy, pyright`, or name one checker if only that one sees the
mistake. The set of lines must match exactly, so a check that stops working and an error that nobody expected
both fail.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOOD = [HERE / "declared.py", HERE / "good.py"]
WRONG = sorted(HERE.glob("wrong/*.py"))

Lines = set[tuple[str, int]]


def expected(checker: str) -> Lines:
    lines = ((file.name, *line) for file in WRONG for line in enumerate(file.read_text().splitlines(), 1))
    return {(name, number) for name, number, line in lines if checker in line.partition("# expect:")[2]}


def ran(*command: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110
    )
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr
    return ended.stdout


def test_mypy_accepts_what_is_right_and_refuses_each_wrong_line() -> None:
    """S3-12, S3-17, S3-53, S3-54: a payload that does not fit is an error before anything runs."""
    said = ran("mypy", "--strict", "--no-pretty", "--no-error-summary", *map(str, [*GOOD, *WRONG]))

    found = re.findall(r"^(.+?):(\d+)(?::\d+)?: error:", said, re.MULTILINE)
    assert {(Path(file).name, int(line)) for file, line in found} == expected("mypy")


def test_pyright_accepts_what_is_right_and_refuses_each_wrong_line(tmp_path: Path) -> None:
    """S3-12, S3-17, S3-53, S3-54: a payload that does not fit is an error before anything runs."""
    # A configuration of its own: the project's leaves the wrong files out.
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "include": [str(file) for file in [*GOOD, *WRONG]],
                "extraPaths": [str(ROOT / "src"), str(ROOT)],
                "pythonVersion": "3.11",
                "typeCheckingMode": "strict",
            }
        )
    )

    said = ran("basedpyright", "--project", str(config), "--pythonpath", sys.executable, "--outputjson")

    found = [each for each in json.loads(said)["generalDiagnostics"] if each["severity"] == "error"]
    lines = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found}
    assert lines == expected("pyright")
