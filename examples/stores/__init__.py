"""A booking system for many stores: what is done for each of them, at which time."""
