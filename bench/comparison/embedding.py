"""A page inside of another: between two marks, one level further down, so that one file can hold several.

<!-- begin postgres -->
## Speed on PostgreSQL
<!-- end postgres -->
"""

import re
from pathlib import Path

HEADING = re.compile(r"^(#+ )", re.MULTILINE)


def placed(page: str, path: Path, name: str) -> str:
    """What the file is to hold: the page alone, or what it holds now with the page between the marks of that name."""
    before, mark, rest = _read(path).partition(_mark("begin", name))
    _, end, after = rest.partition(_mark("end", name))
    if not mark or not end:
        return page
    deeper = HEADING.sub(r"#\1", page).strip()
    return f"{before}{mark}\n\n{deeper}\n\n{end}{after}"


def _mark(what: str, name: str) -> str:
    return f"<!-- {what} {name} -->"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
