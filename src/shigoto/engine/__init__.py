"""Stores of jobs: the seam (`protocol`, `op`) and, one folder each, the engines behind it."""
