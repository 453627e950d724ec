"""People's pairwise choices between items: data contract, splits without leaks, models, measures, synthetic study."""
