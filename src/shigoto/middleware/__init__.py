"""What surrounds the storing and the running of jobs, and may change what happens; whoever only watches is a
subscriber of the bus (`observe/`)."""
