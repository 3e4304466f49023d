"""The guard of asrptd: if asrptd is killed and none takes over, it releases the waiting jobs to Slurm.

It is a shell of 1 MB that waits for the end of a pipe, which the kernel closes however asrptd ends. Under systemd it
ends with the service, and asrpt-release.service does the same.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress

PATIENCE_S = 20
"""Time for a restart or a standby: a supervisor starts asrptd again within seconds."""
_SCRIPT = 'read -r _ || { sleep "$0"; exec "$@"; }'


class Guard:
    """Runs a command ``PATIENCE_S`` after the end of this process, unless dismissed before."""

    def __init__(self, command: Sequence[str], patience_s: float = PATIENCE_S) -> None:
        """In a session of its own, so that a signal to asrptd's process group does not reach it. Raises OSError."""
        words = ["sh", "-c", _SCRIPT, str(patience_s), *command]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    def dismiss(self) -> None:
        """End the guard: asrptd stops in order, and the leases run on."""
        with suppress(OSError):  # it was killed
            self._process.communicate(b"\n")
