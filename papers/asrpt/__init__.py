"""The A-SRPT paper (section V)."""
