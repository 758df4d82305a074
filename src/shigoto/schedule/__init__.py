"""Schedules: when something is due (`recurrence.py`), what becomes of each occurrence (`deciding.py`), and who may
change them (`schedules.py`). The loop that carries it out is `worker/ticker.py`.
"""
