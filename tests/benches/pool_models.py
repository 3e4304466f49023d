"""Trainings of a pool on numpy arrays, small enough for hundreds of rounds in a second."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slurm_asrpt.pool.arrays import Arrays

NODE = "SLURMD_NODENAME"
GO = Path(__file__).with_name("go")


class Line:
    """Logistic regression with momentum. The data of a task depend on the seed, the round and the task only.

    features, rows: of a batch. seconds: that each task takes in addition. stop_at: ends after so many rounds.
    hold: from this round on, tasks wait until there is a file ``go`` beside this module; 0 for never.
    """

    def __init__(
        self,
        lr: float = 0.1,
        seed: int = 0,
        tasks: int = 3,
        rounds: int = 5,
        features: int = 37,
        rows: int = 29,
        seconds: float = 0.0,
        stop_at: int = 0,
        hold: int = 0,
    ) -> None:
        if NODE in os.environ:
            print("on", os.environ[NODE])
        self.tasks, self.rounds = tasks, rounds
        self._lr, self._seed, self._shape = lr, seed, (rows, features)
        self._seconds, self._stop_at, self._hold = seconds, stop_at, hold

    def initial(self) -> Arrays:
        start = np.random.default_rng(self._seed).normal(size=self._shape[1]).astype(np.float32)
        return {"weights": start, "momentum": np.zeros_like(start), "bias": np.float32(0.0).reshape(())}

    def gradient(self, state: Arrays, round: int, task: int) -> tuple[Arrays, float]:
        time.sleep(self._seconds)
        while self._hold and round >= self._hold and not GO.exists():
            time.sleep(0.01)
        random = np.random.default_rng((self._seed, round, task))
        inputs = random.normal(size=self._shape).astype(np.float32)
        targets = (inputs.sum(1) > 0).astype(np.float32)
        guesses = 1 / (1 + np.exp(-np.clip(inputs @ state["weights"] + state["bias"], -30, 30)))
        wrong = guesses - targets
        loss = float(-np.log(np.clip(np.where(targets == 1, guesses, 1 - guesses), 1e-7, 1)).mean())
        return {"weights": inputs.T @ wrong / len(wrong), "bias": wrong.mean(dtype=np.float32).reshape(())}, loss

    def step(self, state: Arrays, gradient: Arrays, round: int) -> Arrays:
        momentum = np.float32(0.9) * state["momentum"] + gradient["weights"]
        rate = np.float32(self._lr)
        return {
            "weights": state["weights"] - rate * momentum,
            "momentum": momentum,
            "bias": np.asarray(state["bias"] - rate * gradient["bias"]),
        }

    def stop(self, losses: Sequence[float]) -> bool:
        return len(losses) == self._stop_at


class Wrong(Line):
    """Its own code fails in a round: by an exception, by sys.exit, or by ending its process."""

    def __init__(self, how: str = "raise", at: int = 1, **given: float) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self._how, self._at = how, at

    def gradient(self, state: Arrays, round: int, task: int) -> tuple[Arrays, float]:
        if round == self._at and self._how == "exit":
            raise SystemExit(3)
        if round == self._at and self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if round == self._at and self._how == "write":
            state["weights"][0] = 1.0
        if round == self._at and self._how == "raise":
            print("about to fail")
            raise ValueError("no such layer\nin this model")
        return super().gradient(state, round, task)


class Hoard(Line):
    """Has 60 MB of data in memory."""

    def __init__(self, **given: float) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self._data = np.ones(60 << 20, np.uint8)
