"""asrptd: the control loop, its state, the audit trail."""
