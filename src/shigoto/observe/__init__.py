"""What can be watched: typed events, the bus that carries them, and the log lines made of them.

Subscribers may only watch. What happens to a job never depends on who listens.
"""
