"""asrpt-gated: jobs in the order of predicted workload, started only in good placements (docs/decisions/0007)."""
