"""The job of chancy.py: its worker imports it by name."""

from bench import protocol


async def noop(*, number: int) -> None:
    """On its event loop."""
    protocol.hit(number)
