"""`shigoto schedules`: what schedules are, what becomes of their ticks, and what can be done to them."""
