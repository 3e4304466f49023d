"""Long trials with make targets of their own: other Slurms, packages, systemd, screenshots."""
