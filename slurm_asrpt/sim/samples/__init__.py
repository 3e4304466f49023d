"""Pieces of public traces, each under its own licence; see README.md."""
