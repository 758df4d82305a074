"""Measures of this package on this machine; `python3 dev.py bench --help` lists them."""
