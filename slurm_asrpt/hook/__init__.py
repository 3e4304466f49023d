"""The submit hook from the side of Python: groups and keys, tag, table, hook.conf, attachments."""
