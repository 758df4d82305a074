"""What dev.py is made of: standard library only, and not part of the package."""
