"""A variable of the environment that switches something on or off."""

from collections.abc import Mapping

from shigoto.model.errors import DeclarationError

ON, OFF = ("1", "on", "true", "yes"), ("", "0", "off", "false", "no")


def word_of(name: str, environment: Mapping[str, str]) -> str | bool:
    """Whether the variable says on or off, which it does if it is not there; else the word that it says."""
    text = environment.get(name, "").strip().lower()
    return text in ON if text in (*ON, *OFF) else text


def is_on(name: str, environment: Mapping[str, str]) -> bool:
    """Whether the variable says on. Raises DeclarationError if it says neither."""
    word = word_of(name, environment)
    if isinstance(word, str):
        # It may be an address with a secret in it, by mistake: it is not repeated.
        raise DeclarationError(f"${name} is on or off, and nothing else.")
    return word
