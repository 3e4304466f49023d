"""Write a checkpoint when asrpt preempts a job whose owner allows it (``--comment=asrpt:interrupt=USR1``).

    from slurm_asrpt.checkpoints import Checkpoints

    checkpoints = Checkpoints()
    for step in range(load_checkpoint(), steps):
        train(step)
        if checkpoints.due():
            save_checkpoint(step + 1)
            checkpoints.written(step + 1)

asrptd sends the signal, waits until the checkpoint is reported and requeues the job. If the requeue does not come, the
training continues. Outside of a job nothing ever becomes due, unless somebody sends the signal.

Imports only from the standard library, because this module is imported into users' programs.
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from slurm_asrpt import progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIGNAL = "USR1"
WAIT_S = 60.0
"""How long to wait for the requeue. asrptd looks for the checkpoint in each of its cycles."""
EVERY = 10
"""With several ranks, how often they agree whether one of them has received the signal: every so many calls."""


class Checkpoints:
    """Whether a checkpoint has been asked for. A handler for the signal that is already there is kept.

    With ranks of torch.distributed, all must call ``due`` equally often, and all get the same answer.
    """

    def __init__(self, name: str = SIGNAL, wait_s: float = WAIT_S) -> None:
        """name: of the signal, as in --comment. Must be called in the main thread, else no signal is received."""
        self._number = signal.Signals[f"SIG{name}"]
        self._wait_s, self._asked, self._calls = wait_s, False, 0
        self._before = signal.getsignal(self._number)
        self.receives = self._before in (signal.SIG_DFL, signal.SIG_IGN) and _in_main_thread()
        if self.receives:
            signal.signal(self._number, self._ask)

    def due(self) -> bool:
        """Whether a checkpoint must be written now."""
        torch = _torch_of_several_ranks()
        if torch is None:
            return self._asked
        self._calls += 1
        return self._calls % EVERY == 0 and _any_rank(torch, self._asked)

    def written(self, iteration: Any) -> None:
        """Report the checkpoint, and wait for the requeue."""
        self._asked = False
        progress.checkpointed(iteration)
        progress.flush()
        ends = time.monotonic() + self._wait_s
        while time.monotonic() < ends and not self._asked:
            time.sleep(0.1)

    def close(self) -> None:
        """Restore the signal's former handler."""
        if self.receives and _in_main_thread():
            signal.signal(self._number, self._before)
            self.receives = False

    def _ask(self, *_: object) -> None:
        self._asked = True


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _torch_of_several_ranks() -> Any:
    """The module torch if this process is one of several ranks, else None. It is never imported here."""
    torch = sys.modules.get("torch")
    ranks = getattr(torch, "distributed", None)
    several = ranks is not None and ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1
    return torch if several else None


def _any_rank(torch: Any, asked: bool) -> bool:
    """Whether one of the ranks was asked; a collective operation."""
    on_cpu = "gloo" in torch.distributed.get_backend() or "mpi" in torch.distributed.get_backend()
    flag = torch.tensor([int(asked)], device="cpu" if on_cpu else torch.cuda.current_device())
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())
