"""`python3 dev.py postgres [FOLDER]`: a private PostgreSQL for development, which runs until Ctrl-C.

The address is written to standard output, with the password in it; the rest is written to standard error.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from devtools.postgres.server import Server
from shigoto.app import open_store
from shigoto.model.errors import ShigotoError

FOLDER = Path(".shigoto/postgres")
LOOK_EVERY = 0.5  # seconds
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str]) -> int:
    """Run the server until a signal arrives, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="dev.py postgres",
        description="Run a private PostgreSQL with the schema of Shigoto until Ctrl-C. Its data stays in the folder.",
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER, help=f"{FOLDER} by default")
    parser.add_argument(
        "--major", type=int, help="the major version; the newest that is installed by default"
    )
    options = parser.parse_args(arguments)
    # As an exception, so that a server that is just being started is stopped as well.
    for number in STOPS:
        signal.signal(number, signal.default_int_handler)
    try:
        tell(f"Starting a private PostgreSQL in {options.folder} …")
        with Server(options.folder, major=options.major, settings={"max_connections": 200}) as server:
            with closing(open_store(server.address)) as engine:
                engine.migrate()
            print(server.address, flush=True)
            tell(
                "Set SHIGOTO_URL to this address in another terminal. Workers need --any-role. Ctrl-C stops it."
            )
            while server.running:
                time.sleep(LOOK_EVERY)
            tell(f"The private PostgreSQL has ended by itself. It said:\n{server.log_tail()}")
            return 1
    except KeyboardInterrupt:
        tell(f"The private PostgreSQL has stopped. Its data stays in {options.folder}.")
    except ShigotoError as error:
        tell(f"Error [{error.code}]: {error}")
        return 1
    return 0


def tell(line: str) -> None:
    """Write a line for people."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
