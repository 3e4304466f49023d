"""What asrptd records: the audit trail, decisions, the history of runs, and progress."""
