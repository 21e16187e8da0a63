"""Searching hyper-parameters with Optuna: every trial is an ordinary run, measured on held-out training images."""
