"""Pages a person reads: one document engine, and the stages that write with it."""
