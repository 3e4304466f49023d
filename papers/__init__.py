"""The simulations of the papers, repeated: ``python -m papers`` in a checkout. This package is not installed."""
