"""The other queues on PostgreSQL; see bench/peers for what a runner is."""
