"""`python -m shigoto` is the same as `shigoto`."""

from shigoto.cli import main

if __name__ == "__main__":
    main()
