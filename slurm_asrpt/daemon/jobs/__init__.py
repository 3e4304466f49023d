"""Managed jobs: their state and lifecycle, their saved state, and admission."""
