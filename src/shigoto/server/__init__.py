"""The HTTP service: jobs for whoever speaks HTTP, and for workers that cannot reach the store (extra `server`).

from shigoto.server import Service, serve

serve(app)                              # on 127.0.0.1:8710, until told to stop
outer.mount("/jobs", Service(app))      # inside of an ASGI app of one's own

The two names are imported when they are asked for: `shigoto.server.audit`, `shigoto.server.tokens` and
`shigoto.server.task_catalog` serve the command line, too, which does without a web framework.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shigoto.server.listen import serve
    from shigoto.server.service import Service

__all__ = ["Service", "serve"]


def __getattr__(name: str) -> object:
    if name == "serve":
        from shigoto.server.listen import serve

        return serve
    if name == "Service":
        from shigoto.server.service import Service

        return Service
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
