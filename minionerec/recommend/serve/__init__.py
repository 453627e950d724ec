"""A recommender behind HTTP: requests read and refused, batched, answered by one model, and models exchanged."""
