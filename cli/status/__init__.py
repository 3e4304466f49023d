"""asrpt-status: the queue as asrptd sees it."""
