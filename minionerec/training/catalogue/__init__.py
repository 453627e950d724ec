"""Training of catalogue models: windows, objectives, experts and popularity."""
