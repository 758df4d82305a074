"""Observation of a worker and its jobs: typed events and the bus that carries them, log lines, metrics, traces, Sentry.

Subscribers may only watch: what happens to a job never depends on who listens. Only a trace surrounds the storing and
the running of jobs (`tracing.py`), and what it raises never harms them.
"""
