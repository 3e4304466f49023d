"""The jobs of a campaign: submitted while faults happen, each with what its owner wants."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.lab.cluster import Lab
from tests.e2e.conftest import Cluster
from tests.faults.invariants import Ticket, Wish

USER = "asrpt1"
SCRIPT = 'echo "{token} $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $SLURMD_NODENAME $(date +%s.%N)" >> ran.out\n{rest}\n'


class Loaded(Cluster):
    """A cluster under load. tickets: those of the current round. plain: without asrptd."""

    def __init__(self, lab: Lab, plain: bool) -> None:
        super().__init__(lab)
        self.plain = plain
        self.tickets: list[Ticket] = []
        self._number = 0
        self._lock = threading.Lock()

    def put(
        self, wish: Wish, *options: str, seconds: float = 0.5, gpus: int = 1, managed: bool = True, node: str = ""
    ) -> Ticket:
        """Submit one job; a failed sbatch may still have submitted it, so it is recorded too."""
        where = [*([] if managed else ["-p", "other"]), *(["-w", node] if node else [])]
        words = ["-n", str(gpus), "--gpus-per-task=1", *where, *options]
        ticket = Ticket(self._token(), "", wish, managed and not self.plain, nodes=node)
        return self._put(ticket, words, f"sleep {seconds:.2f}")

    def put_training(self, iterations: int, silent: bool) -> Ticket:
        """Submit a preemptible job on all GPUs of a node, 20 iterations per second. silent: reports no checkpoint."""
        token = self._token()
        train = f"{self.lab.train} --checkpoint {token}.at --iterations {iterations} --speedup 20 --wait 300"
        rest = f"trap '' USR1\nexec {'env -u ASRPT_PROGRESS_DIR ' if silent else ''}{train} >> {token}.out"
        words = ["-N1", "-n1", "--gpus=4", "--requeue", "--comment=asrpt:interrupt=B:USR1"]
        return self._put(Ticket(token, "", iterations=iterations), words, rest)

    def put_array(self, tasks: int, bound: int, seconds: float = 0.5, gpus: int = 1) -> list[Ticket]:
        """Submit an array with a limit of running tasks (0: none); return a ticket for each task."""
        name = self._token()
        words = ["-n", str(gpus), "--gpus-per-task=1", f"--array=1-{tasks}{f'%{bound}' if bound else ''}"]
        whole = Ticket(name, "", Wish.RUN, not self.plain)
        job_id = self._submit(whole, words, f"sleep {seconds:.2f}", f"{name}.$SLURM_ARRAY_TASK_ID")
        tickets = [
            replace(whole, token=f"{name}.{task}", job_id=job_id and f"{job_id}_{task}") for task in range(1, tasks + 1)
        ]
        with self._lock:
            self.tickets += tickets
        return tickets

    def wishes(self, changed: Mapping[str, Wish]) -> None:
        """Change what the owners want of these jobs."""
        with self._lock:
            self.tickets = [replace(t, wish=changed.get(t.token, t.wish)) for t in self.tickets]

    def _token(self) -> str:
        with self._lock:
            self._number += 1
            return f"t{self._number:05}"

    def _put(self, ticket: Ticket, words: Sequence[str], rest: str) -> Ticket:
        ticket = replace(ticket, job_id=self._submit(ticket, words, rest, ticket.token))
        with self._lock:
            self.tickets.append(ticket)
        return ticket

    def _submit(self, ticket: Ticket, words: Sequence[str], rest: str, said: str) -> str:
        """The job's id, "" if sbatch failed. said: the token, as written by the script."""
        script = SCRIPT.format(token=said, rest=rest)
        with contextlib.suppress(SlurmError):
            return self.submit("-J", ticket.token, "-o", "/dev/null", *words, script=script, user=USER)
        return ""

    def put_some(self, rng: Random, count: int) -> None:
        """Submit a mix: most jobs run at once; some are held, delayed, dependent, cancelled, picky, or not managed."""
        for _ in range(count):
            self._put_one(rng)

    def _put_one(self, rng: Random) -> None:
        seconds, gpus, kind = rng.uniform(0.1, 1.0), rng.choice((1, 1, 2, 3, 4, 6, 8)), rng.random()
        if kind < 0.06:
            self.put(Wish.HELD, "--hold", seconds=seconds, gpus=gpus)
        elif kind < 0.12:
            self.put(Wish.LATER, "--begin=now+2hours", seconds=seconds, gpus=gpus)
        elif kind < 0.18:
            ticket = self.put(Wish.CANCELLED, seconds=seconds, gpus=gpus)
            with contextlib.suppress(SlurmError):
                self.cancel(*filter(None, [ticket.job_id]))
        elif kind < 0.24:
            self.put(Wish.RUN, seconds=seconds, gpus=min(gpus, 4), managed=False)
        elif kind < 0.34:
            self.put_array(rng.randint(2, 5), rng.choice((0, 0, 1, 2)), seconds=seconds, gpus=min(gpus, 4))
        elif kind < 0.42 and self.tickets and self.tickets[-1].job_id and self.tickets[-1].wish is Wish.RUN:
            self.put(Wish.RUN, f"--dependency=afterany:{self.tickets[-1].job_id}", seconds=seconds, gpus=gpus)
        elif kind < 0.48:
            self.put(Wish.RUN, seconds=seconds, gpus=min(gpus, 2), node=rng.choice(("n1", "n2")))
        elif kind < 0.54:
            self.put(Wish.RUN, rng.choice(("--exclude=n1", "--exclusive")), seconds=seconds, gpus=min(gpus, 4))
        else:
            self.put(Wish.RUN, seconds=seconds, gpus=gpus)

    def put_many(self, count: int, *options: str, wish: Wish = Wish.RUN) -> None:
        """Run as many sbatch at once as the machine can."""
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda _: self.put(wish, *options, seconds=0.0), range(count)))

    @contextlib.contextmanager
    def load(self, rng: Random, pause_s: float = 0.25) -> Iterator[None]:
        """Submissions in the background while a fault happens."""
        stop, own = threading.Event(), Random(rng.random())

        def submit() -> None:
            while not stop.is_set():
                self._put_one(own)
                stop.wait(own.uniform(0, 2 * pause_s))

        thread = threading.Thread(target=submit, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
