"""What disturbs."""
