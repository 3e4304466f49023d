"""Reference implementations: simple, slow and exact, for comparison with the fast ones."""
