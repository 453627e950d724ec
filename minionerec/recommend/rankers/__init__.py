"""Rankers: from histories to ranked items with scores."""
