"""The simulations of the papers, run again: from a checkout, not installed."""
