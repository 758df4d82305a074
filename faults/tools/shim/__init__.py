"""What is put on the path of other programs."""
