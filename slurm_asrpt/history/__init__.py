"""The history of runs: its store, schema, import, export and maintenance."""
