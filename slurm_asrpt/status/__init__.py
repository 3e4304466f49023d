"""What asrptd publishes for users: status.json, its schema, and the explanation of a job's state."""
