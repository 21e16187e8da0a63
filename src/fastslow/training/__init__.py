"""One readable training loop, its configuration, its state on disk."""
