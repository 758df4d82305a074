"""For tests: a clock that obeys, and the suite that every engine must pass. Needs pytest and hypothesis."""
