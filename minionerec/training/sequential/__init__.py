"""Training of sequential recommenders, and their evaluation."""
