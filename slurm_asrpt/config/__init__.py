"""Settings: what they are, where they lie, and the pages made from them."""

DEFAULT_POLICY = "asrpt-gated"
"""The policy if the settings name none. Here because --help shows it, and importing all settings takes too long."""
