"""Defaults of settings that commands show in --help, where importing all settings would take too long."""

DEFAULT_POLICY = "asrpt-gated"
