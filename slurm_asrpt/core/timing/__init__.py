"""The duration of one training iteration in a given placement."""
