"""The supervisor, and the runner processes that it looks after: what `shigoto worker` is."""
