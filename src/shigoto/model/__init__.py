"""The nouns of the system: plain values and pure decisions, with no I/O and no knowledge of any engine."""
