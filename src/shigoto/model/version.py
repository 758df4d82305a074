"""The version of this package. It is written here and nowhere else.

To ask `importlib.metadata` for it would cost every process of a worker more than a megabyte.
"""

VERSION = "0.1.0"
