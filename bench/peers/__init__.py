"""The other queues: one small runner for each, through its public face and at the best settings we could find.

They run in an environment of their own (see comparison/environment.py), so nothing here imports them when it is read by
others. Each says what its queue promises; what could be asked of the queue itself, was.
"""
