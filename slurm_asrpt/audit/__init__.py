"""Reads the audit trail, and replays single decisions of asrptd."""
