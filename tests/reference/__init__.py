"""Second implementations: obvious, slow, exact; what the quick ones are compared with."""
