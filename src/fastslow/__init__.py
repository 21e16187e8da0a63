"""fastslow."""
