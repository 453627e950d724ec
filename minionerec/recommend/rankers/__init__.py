"""What recommends: histories in, ranked items with scores out."""
