"""A service that keeps users, and welcomes each new one in the background."""
