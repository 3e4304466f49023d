"""What asrptd has decided, read back: the audit trail, and single decisions made again."""
