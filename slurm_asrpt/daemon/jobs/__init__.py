"""The managed job: its state and lifecycle, what is saved of it, and admission."""
