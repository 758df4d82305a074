"""Whole stores: moved to another one, exported to a file, imported from one."""
