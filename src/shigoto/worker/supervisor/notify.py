"""What a service manager is told, if there is one that asks: systemd's `Type=notify` and `WatchdogSec=`.

It asks by the environment: NOTIFY_SOCKET names a socket, WATCHDOG_USEC says how often it wants to hear that all is
well. Both are taken out of the environment, as they are not for whom we start.
"""

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping

logger = logging.getLogger("shigoto.worker")

OFTEN = 3  # words within the time in which the manager wants one
PATIENCE = 1.0  # seconds, for what is said only once


class ServiceManager:
    """The one that watches over us; nobody, perhaps, and then nothing happens here."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        # The socket may be inherited from a manager whose watchdog means another process.
        meant = environment.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        every = environment.pop("WATCHDOG_USEC", "")
        self._deaf = False
        self._every = int(every) / 1_000_000 if meant and every.isdecimal() else 0.0

    def ready(self, status: str) -> None:
        """All that was asked for is at work; `status` says of what that is."""
        self._tell("READY=1", f"STATUS={status}", patience=PATIENCE)

    def stopping(self) -> None:
        """The end has begun."""
        self._tell("STOPPING=1", "STATUS=Stopping", patience=PATIENCE)

    async def run(self) -> None:
        """Say that all is well, as often as the manager wants to hear it, until cancelled."""
        while self._every > 0 and self._address:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._every / OFTEN)

    def _tell(self, *words: str, patience: float = 0.0) -> None:
        if not self._address:
            return
        # A name that begins with @ is one that no file has; the system writes that as a zero byte.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.settimeout(patience)
                line.sendto("\n".join(words).encode(), address)
        except OSError as error:
            if not self._deaf:
                logger.warning(
                    "The service manager cannot be told %s: %s. It may think that this service hangs, and end it.",
                    words[0],
                    error,
                )
            self._deaf = True
        else:
            self._deaf = False
