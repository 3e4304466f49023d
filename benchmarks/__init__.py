"""One script per figure; with --json, each prints one JSON object."""
