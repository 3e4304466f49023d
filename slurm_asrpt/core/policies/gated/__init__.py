"""asrpt-gated: predicted workload decides the order, placement decides which job may start (docs/decisions/0007)."""
