"""The address of a store, as an app may be given it."""

import os
from typing import TypeGuard
from urllib.parse import quote

from shigoto.model.errors import DeclarationError
from shigoto.model.text import shown, storable


def address_of(url: object) -> str | None:
    """The address, given as one or as the path of a file; None if nothing was. Raises DeclarationError."""
    if url is None:
        return None
    if isinstance(url, str):
        if not url.strip():
            raise DeclarationError(
                "The address of the store is empty: name one, or leave it out for $SHIGOTO_URL or workers.db."
                " Is there a variable that is not set?"
            )
        return url
    if not _is_path(url):
        raise DeclarationError(
            f"The store must be an address or a path, such as 'sqlite:///jobs.db', not {shown(url)}."
        )
    return f"sqlite:///{quote(storable('The path of the store', os.fspath(url)))}"


def _is_path(url: object) -> TypeGuard[os.PathLike[str]]:
    return isinstance(url, os.PathLike)
