"""Schedules: when something is due (`recurrence.py`), what becomes of each tick (`decide.py`, `fire.py`), and how they
are declared (`declare.py`) and changed (`manage.py`). The loop that carries it out is `worker/ticker.py`.
"""
