"""The stages: settings, artefacts, recipes and the command, around the library."""
