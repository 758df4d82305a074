"""Child processes: where jobs run that need a process of their own, one at a time in each."""
