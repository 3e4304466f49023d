"""How long one training iteration takes in a given placement."""
