"""What asrptd publishes to users: status.json, its schema, and what explains it."""
