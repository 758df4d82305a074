"""The HTTP service: jobs for whoever speaks HTTP, and for workers that cannot reach the store (extra `server`).

from shigoto.server import Service, serve

serve(app)                              # on 127.0.0.1:8710, until told to stop
outer.mount("/jobs", Service(app))      # inside of an ASGI app of one's own
"""

from shigoto.server.run import serve
from shigoto.server.service import Service

__all__ = ["Service", "serve"]
