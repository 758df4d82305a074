"""Tools for contributors. dev.py needs only the standard library; reference.py and postgres/ also need Shigoto."""
