"""Start-time forecasts: their inputs and the process that computes them."""
