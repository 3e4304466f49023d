"""Shipped profiles, one TOML file per model and parallel configuration."""
