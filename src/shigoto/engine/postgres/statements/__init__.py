"""The SQL of this engine, by concern: the path of a job, repair, and what people ask."""
