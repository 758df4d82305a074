"""The comparison with other queues on one SQLite file: `python3 dev.py bench --peers sqlite`."""
