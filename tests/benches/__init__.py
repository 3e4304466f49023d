"""Test benches: parts of the product in memory, with helpers to drive and inspect them."""
