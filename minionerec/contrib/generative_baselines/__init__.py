"""Other published generative recommenders, for comparison; see README.md."""
