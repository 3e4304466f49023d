"""Generates and measures the shipped profiles; no job and no daemon needs it."""
