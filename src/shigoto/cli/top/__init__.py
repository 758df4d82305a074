"""`shigoto top`, the live terminal view.

    loop:  keys, signals, looks and actions come in  →  state: a pure step  →  view: pure lines  →  the terminal

Whatever the store is asked is asked in a thread of its own, so that the screen answers while the store does not.
"""
