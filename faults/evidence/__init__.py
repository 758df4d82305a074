"""What is written down outside the system under test, and what can be read from it."""
