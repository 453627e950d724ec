"""From rows on disk to a corpus: items with text, and train, valid and test examples of (history, target)."""
