"""Shigoto in the comparison, as a plain script that works in any folder: `python bench/shigoto_runner.py drain 100000`.

See ours.py and, if $ENGINE is `postgres`, ours_postgres.py for what it does, and protocol.py for the commands.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Measure the source of this checkout, whatever else is installed."""
    # As a script it finds neither its own package nor the source; and its folder has modules that nobody means.
    paths = [path for path in sys.path if Path(path).resolve() != ROOT / "bench"]
    sys.path[:] = [str(ROOT), str(ROOT / "src"), *paths]
    if os.environ.get("ENGINE", "sqlite") == "sqlite":
        from bench import ours

        ours.main()
    else:
        from bench import ours_postgres

        ours_postgres.main()


if __name__ == "__main__":
    main()
