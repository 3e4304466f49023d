"""Shipped models as blocks, not cut into stages yet; one TOML file per model."""
