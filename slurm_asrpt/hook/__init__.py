"""What Python and the Lua submit hook share: tag, group keys, lookup table, hook.conf, attachments."""
