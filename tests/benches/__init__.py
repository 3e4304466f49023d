"""Test benches: a part of the product in memory, and what tests ask of it."""
