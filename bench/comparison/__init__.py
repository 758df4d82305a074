"""The comparison with other queues: `python3 dev.py bench --peers sqlite`, and `--peers postgres`."""
