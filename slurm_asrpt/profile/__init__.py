"""Profiles of models: files, the planner that cuts models into stages, and measurements with torch."""
