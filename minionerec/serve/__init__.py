"""An HTTP server for recommenders: validation, batching, and reloading of models."""
