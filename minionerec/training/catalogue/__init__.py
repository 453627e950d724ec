"""Training of catalogue models: windows, objectives and popularity."""
