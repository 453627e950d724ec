"""Commands: one for each stage, and one that runs a pipeline of stages."""
