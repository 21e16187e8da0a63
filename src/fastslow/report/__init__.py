"""Tables, curves and summaries of networks and runs."""
