"""One script per figure; each prints one JSON object with --json."""
