"""Trainings of torch modules in a pool: equal to the bit however they are spread, and to torch's usual loop."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.pool.arrays import Packed
from slurm_asrpt.pool.snapshot import Snapshot
from slurm_asrpt.pool.synchronization import RoundSum
from tests.benches.pool import Pool, same

torch = pytest.importorskip("torch", reason="needs torch: make test-integrations")

MODULE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from slurm_asrpt.pool.torch_training import LoaderTraining, TorchTraining

def rows():
    made = torch.Generator().manual_seed(1)
    x = torch.randn(48, 7, generator=made)
    return x, (x.sum(1, keepdim=True) > 0).float()

def network():
    return torch.nn.Sequential(
        torch.nn.Linear(7, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    )

loss = torch.nn.functional.binary_cross_entropy_with_logits

class Net(TorchTraining):
    tasks, rounds, device = 3, 6, "cpu"

    def __init__(self, kind="sgd", lr=0.1):
        self.kind, self.lr = kind, lr

    def model(self):
        return network()

    def optimizer(self, parameters):
        if self.kind == "adam":
            return torch.optim.AdamW(parameters, self.lr)
        return torch.optim.SGD(parameters, self.lr, momentum=0.9)

    def schedule(self, optimizer, round):
        optimizer.param_groups[0]["lr"] = self.lr / (1 + round)

    def data(self, round, task):
        x, y = rows()
        chosen = torch.randint(48, (8,))
        return x[chosen], y[chosen]

    def loss(self, model, batch):
        return loss(model(batch[0]), batch[1])

def loaded(lr):
    loader = DataLoader(TensorDataset(*rows()), batch_size=8, shuffle=True)
    return LoaderTraining(
        network(), loader, lambda model, batch: loss(model(batch[0]), batch[1]),
        lambda parameters: torch.optim.SGD(parameters, lr), tasks=2, rounds=5,
    )
"""

SWEEP = """
[[training]]
name = "net"
uses = "nets:Net"
grid = { kind = ["sgd", "adam"], lr = [0.1, 0.03] }
[[training]]
name = "loaded"
uses = "nets:loaded"
with = { lr = 0.1 }
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "nets", raising=False)
    return __import__("nets")


def advanced(training: Any, state: Packed, round: int, order: list[int]) -> tuple[Packed, float]:
    found = RoundSum(training.tasks)
    for task in order:
        gradient, loss = training.gradient(state.arrays(), round, task)
        found.add(task, Packed.of(gradient), loss)
    return Packed.of(training.step(state.arrays(), found.mean().arrays(), round)), found.mean_loss


def trained(training: Any, chance: random.Random, others: list[Any]) -> Snapshot:
    """Each round on any of several objects, as in several executors, its tasks in any order, some of them twice."""
    snapshot = Snapshot(Packed.of(training.initial()))
    for round in range(training.rounds):
        order = [*chance.sample(range(training.tasks), training.tasks), chance.randrange(training.tasks)]
        snapshot = snapshot.after(*advanced(chance.choice([training, *others]), snapshot.state, round, order))
    return snapshot


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_the_order_of_tasks_and_the_executor_make_no_difference(nets: Any, kind: str) -> None:
    first = trained(nets.Net(kind), random.Random(0), [])
    for seed in range(1, 4):
        again = trained(nets.Net(kind), random.Random(seed), [nets.Net(kind), nets.Net(kind)])
        assert again.losses == first.losses
        assert again.state.same(first.state)


def test_batches_of_a_loader_are_all_given_out_once_per_epoch(nets: Any) -> None:
    training = nets.loaded(0.1)
    epochs = []
    for epoch in range(2):
        batches = [training.data(*divmod(epoch * 6 + number, training.tasks))[0] for number in range(6)]
        epochs.append(torch.cat(batches))
    assert not torch.equal(*epochs)
    for each in epochs:
        assert torch.equal(each[each[:, 0].argsort()], nets.rows()[0][nets.rows()[0][:, 0].argsort()])
    assert torch.equal(nets.loaded(0.1).data(1, 1)[0], training.data(1, 1)[0])


def test_one_task_per_round_is_a_loop_of_torch(nets: Any) -> None:
    """The same losses and weights as torch's usual loop, to the bit."""
    training = nets.Net("adam", lr=0.1)
    training.tasks = 1
    found = trained(training, random.Random(0), [])
    again = nets.Net("adam", lr=0.1)
    model, losses = again._model, []
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    for round in range(again.rounds):
        nets.Net.schedule(again, optimizer, round)
        torch_seed(again.seed, round)
        batch = again.data(round, 0)
        torch_seed(again.seed, round)
        loss = again.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert found.losses == tuple(losses)
    state = found.state.arrays()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, torch.tensor(state[f"model/{name}"])), name


def torch_seed(seed: int, round: int) -> None:
    from slurm_asrpt.pool.torch_training import _seed

    _seed(seed, round, 0)


def test_an_error_of_the_device_ends_the_executor_and_not_the_training(nets: Any) -> None:
    from slurm_asrpt.pool.training import DeviceLostError

    training = nets.Net()
    state = training.initial()
    for text, expected in (
        ("CUDA error: an illegal memory access", DeviceLostError),
        ("CUDA out of memory", RuntimeError),
    ):

        def fails(*_: Any, text: str = text) -> Any:
            raise RuntimeError(text)

        training.loss = fails
        with pytest.raises(expected) as told:
            training.gradient(state, 0, 0)
        assert type(told.value) is expected


def test_the_example_of_the_manual_learns(tmp_path: Path) -> None:
    """With fewer rounds and trainings."""
    text = (Path(__file__).parents[2] / "docs" / "pool.md").read_text()
    code, load_code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2]
    (sweep,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    pool = Pool(tmp_path, sweep.replace("[0.3, 0.1, 0.03]", "[0.1]").replace("[32, 128]", "[32]"))
    (tmp_path / "train.py").write_text(code.replace("4, 200", "4, 40"))
    code, out, _ = pool.run()
    assert (code, out.splitlines()[-1]) == (0, "done: 2 trainings done")
    module = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    exec(load_code.replace("sweep.pool", str(pool.folder.path)), {"module": module})
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    guesses = module(torch.tensor(digits.data / 16).float()).argmax(1)
    assert (guesses == torch.tensor(digits.target)).float().mean() > 0.8


def test_real_processes_train_torch_modules(tmp_path: Path) -> None:
    """In every way to turn to another training. Few of them stay loaded, and fewer of their states are kept."""
    results = []
    for name, slots, how in (
        ("one", 1, ""),
        ("layers", 2, 'switch = "layers"\npolicy = "hlas"\nkeep = 2'),
        ("ahead", 3, 'switch = "ahead"\npolicy = "2d-las"\nkeep = 3'),
    ):
        pool = Pool(tmp_path / name, f"[pool]\n{how}\n{SWEEP}")
        (tmp_path / name / "nets.py").write_text(MODULE)
        code, out, _ = pool.run(slots)
        assert (code, out.splitlines()[-1]) == (0, "done: 5 trainings done")
        results.append(pool.results())
    for each in results[1:]:
        assert same(results[0], each)


LARGE = """
import torch
from slurm_asrpt.pool.torch_training import TorchTraining

class Large(TorchTraining):
    tasks, rounds, device = 1, 1, "cpu"

    def __init__(self, width, kind):
        self.width, self.kind = width, kind

    def model(self):
        layers = [torch.nn.Linear(self.width, self.width) for _ in range(4)]
        print("made")
        return torch.nn.Sequential(*layers)

    def optimizer(self, parameters):
        return (torch.optim.AdamW if self.kind == "adam" else torch.optim.SGD)(parameters, 0.1)

    def data(self, round, task):
        return torch.ones(1, self.width)

    def loss(self, model, batch):
        return model(batch).mean()
"""


def test_a_module_that_does_not_fit_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """16 MB of parameters with SGD fit, with AdamW's state not; of 16 GB, only the first layers are ever looked at."""
    used = re.search(r"; (\S+) MB without it", why(tmp_path / "tight", 50, "sgd", 1000))
    assert used
    between = int(float(used[1])) + 110  # SGD: 16 MB times 5; AdamW: times 11
    assert why(tmp_path / "sgd", between, "sgd", 1000) == ""
    assert "(parameters 15.3 MB, optimizer 30.5 MB, with copies; " in why(tmp_path / "adam", between, "adam", 1000)
    assert re.match(r"needs 15\.\d GB of memory \(parameters 3\.8 GB, ", why(tmp_path / "large", 4000, "sgd", 32000))


def why(path: Path, memory_mb: int, kind: str, width: int) -> str:
    """Why a training in a slot of this size has failed; "" if it has not."""
    told = f'[[training]]\nname = "n"\nuses = "large:Large"\nwith = {{ kind = "{kind}", width = {width} }}\n'
    pool = Pool(path, f"[pool]\nslot_memory_mb = {memory_mb}\n{told}")
    pool.sweep.with_name("large.py").write_text(LARGE)
    pool.run(slots=1)
    return pool.status().trainings[0].why
