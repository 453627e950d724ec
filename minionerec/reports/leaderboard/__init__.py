"""One page that sets many recommenders side by side, from finished artefacts."""
