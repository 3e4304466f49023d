"""Random training scripts from a grammar: the training, and the details that differ between its submissions."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

LAUNCHERS = [
    "python", "python3 -u", "/usr/bin/python3.11", "srun python", "srun -n 4 --gpus-per-task=1 python -m",
    "torchrun --nproc_per_node={gpus}", "torchrun --nnodes 2 --nproc_per_node {gpus} --rdzv_endpoint $HOST:{port}",
    "python -m torch.distributed.run --nproc_per_node {gpus}", "accelerate launch --num_processes {gpus}",
    "deepspeed --num_gpus {gpus}", "mpirun -np {gpus} -x PATH --mca btl self python", "env A=b nice -n 5 time python",
    "srun --container-image x.sif singularity exec --nv image.sif python", "exec python", "bash",
]  # fmt: skip
NUMBERS = {
    "epochs": ["--epochs {}", "--num-epochs={}", "--num_train_epochs {}", "trainer.max_epochs={}"],
    "steps": ["--max-steps {}", "--max_steps={}", "--iterations {}"],
    "batch_size": ["--batch-size {}", "--per_device_train_batch_size={}", "data.batch_size={}"],
    "lr": ["--lr {}", "-lr {}", "--learning-rate={}", "+optimizer.lr={}"],
    "weight_decay": ["--weight-decay {}", "--wd={}"],
}
VALUES = ["1", "3", "90", "0.1", "1e-4", "5E-05", "128", "250000"]
SEEDS = ["--seed {}", "--random-seed={}", "model.seed={}"]
OUTPUTS = ["-o run{}.out", "--output-dir /scratch/run{}", "--log_dir=logs/{}", "--run-name 'try number {}'", "> log.{}"]
BEFORE = [
    "SEED={}",
    "export RUN_ID={}",
    "OUTPUT_DIR=/scratch/{}/out",
    "echo try {}",
    "mkdir -p run{}",
    "date",
]
COMMENTS = ["# try {}", "    # {} more", "#SBATCH --time={}", "", "   ", "\t# it's \"{}"]
AFTER = ["| tee log{}.txt", "2>&1 | tee -a log{}", ">> out{} 2>&1", "# try {}", "; echo {}", "&& echo done {}"]
DATES = ["2026-11-21", "20261121", "2026_01_02_03_04_05", "2031/12/31-23:59:59", "1795257166"]


@dataclass(frozen=True)
class Training:
    """A training. numbers: hyperparameter values as written; options: the program's options with these values."""

    program: str
    model: str
    dataset: str
    launcher: str
    numbers: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def arguments(self) -> list[bytes]:
        return [b"--flag", b"x"]


@st.composite
def _trainings(draw: st.DrawFn) -> Training:
    numbers = draw(st.dictionaries(st.sampled_from(sorted(NUMBERS)), st.sampled_from(VALUES)))
    spelled = tuple(draw(st.sampled_from(NUMBERS[name])).format(value) for name, value in numbers.items())
    return Training(
        draw(st.sampled_from(["train.py", "src/main.py", "pkg.train", "run_glue.py"])),
        draw(st.sampled_from(["resnet50", "gpt2", "vgg19"])),
        draw(st.sampled_from(["imagenet", "c4", "data/v2"])),
        draw(st.sampled_from(LAUNCHERS)),
        numbers,
        spelled,
    )


trainings = _trainings()


@st.composite
def submission_of(draw: st.DrawFn, training: Training) -> bytes:
    """One submission of ``training``, with random comments, seeds, output paths, dates, GPUs and line ends."""
    numbers = st.integers(0, 99999).map(str)

    def some(texts: list[str], most: int) -> list[str]:
        return [text.format(draw(numbers)) for text in draw(st.lists(st.sampled_from(texts), max_size=most))]

    launcher = training.launcher.format(gpus=draw(st.integers(1, 8)), port=draw(numbers))
    options = [
        f"--model {training.model}",
        f"--dataset={training.dataset}",
        f"--resume runs/{draw(st.sampled_from(DATES))}",
    ]
    extra = draw(st.permutations([*training.options, *some(SEEDS, 2), *some(OUTPUTS, 2)]))
    joint = draw(st.sampled_from([" ", "  ", " \\\n  ", "\t"]))
    command = joint.join([launcher, training.program, *options, *extra]) + " " + " ".join(some(AFTER, 1))
    lines = ["#!/bin/bash", *some(COMMENTS, 6), "module load cuda", *some(BEFORE + COMMENTS, 5), command]
    lines += some([*COMMENTS, "echo {}", "sleep {}"], 3)
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return "\n".join(lines).replace("\n", end).encode() + draw(st.sampled_from([b"", b"\n", b"\n\n \n"]))
