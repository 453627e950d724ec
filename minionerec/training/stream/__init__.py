"""Training from rows that lie on disk: tokenised once, read in blocks, in an order that follows from the seed."""
