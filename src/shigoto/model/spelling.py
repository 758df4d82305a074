"""A hint for whoever has misspelt a name."""


def nearest(name: str, known: "list[str] | tuple[str, ...] | set[str] | frozenset[str]") -> str:
    """A hint for a misspelt name: ` Did you mean 'x'?`, or an empty string when nothing is close."""
    from difflib import get_close_matches  # who spells well never needs it

    matches = get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""
