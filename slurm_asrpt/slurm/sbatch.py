"""sbatch's options in a job script and on a command line, and the job record that Slurm would create."""

from __future__ import annotations

import getopt
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_asrpt.errors import InputError, SlurmError
from slurm_asrpt.hook.job_script import sbatch_words
from slurm_asrpt.slurm.gres import gpu_types, without_gpus
from slurm_asrpt.slurm.notation import read_time
from slurm_asrpt.slurm.records import PENDING, JobRecord
from slurm_asrpt.text import counted

_VALUED = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container container-id
core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude
export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres
gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu
mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
ntasks-per-socket open-mode output partition power prefer priority profile qos reservation segment signal
sockets-per-node switches thread-spec threads-per-core time time-min tmp tres-bind tres-per-task uid wait-all-nodes
wckey wrap
"""
_MAYBE_VALUED = ("exclusive", "get-user-env", "nice", "no-kill", "propagate")
_WITH = ("exclusive-user", "exclusive-mcs", "exclusive-topo")
"""Substitutes for options such as ``--exclusive=user``, because getopt does not support optional values."""
_FLAGS = """
contiguous help hold ignore-pbs no-requeue overcommit oversubscribe parsable quiet reboot requeue spread-job stepmgr
test-only usage use-min-nodes verbose version wait
"""
_SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "J": "job-name", "L": "licenses",
    "M": "clusters", "N": "nodes", "S": "core-spec", "a": "array", "b": "begin", "c": "cpus-per-task",
    "d": "dependency", "e": "error", "i": "input", "m": "distribution", "n": "ntasks", "o": "output",
    "p": "partition", "q": "qos", "t": "time", "w": "nodelist", "x": "exclude", "G": "gpus", "F": "nodefile",
}  # fmt: skip
_SHORT_FLAGS = {"H": "hold", "Q": "quiet", "O": "overcommit", "s": "oversubscribe", "v": "verbose", "V": "version",
                "W": "wait", "h": "help", "k": "no-kill"}  # fmt: skip
_LETTERS = "".join(f"{letter}:" for letter in _SHORT) + "".join(_SHORT_FLAGS)
_SHARED = re.compile(r"--exclusive=(user|mcs|topo)")
_LONG = [*(f"{name}=" for name in _VALUED.split()), *_MAYBE_VALUED, *_FLAGS.split(), *_WITH]
_MAYBE = re.compile(rf"(--(?:{'|'.join(_MAYBE_VALUED)}))=.*", re.DOTALL)
_NAMES = {f"-{letter}": name for letter, name in (_SHORT | _SHORT_FLAGS).items()}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)B?", re.IGNORECASE)
_NUMBER = "[0-9]{1,9}"  # sbatch has 32-bit numbers
_GPUS = re.compile(rf"{_NUMBER}|[A-Za-z][^:,=]*|(?=[^:=]*[A-Za-z])[A-Za-z0-9][^:,=]*[:=]{_NUMBER}")
"""A type alone means one GPU. One that begins with a digit is that of MIG instances (``1g.10gb:2``)."""
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_TIME = re.compile(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")


@dataclass(frozen=True)
class Submission:
    """options: by their long names; the last one counts. args: the script's. het: a heterogeneous job."""

    options: Mapping[str, str]
    args: tuple[str, ...] = ()
    het: bool = False


def read_submission(script: bytes, words: Sequence[str]) -> Submission:
    """Parse a script and sbatch's command line without the script. Raises InputError."""
    inside = sbatch_words(script)
    directives, _ = _options(inside, "an #SBATCH line")
    given, args = _options(words, "after --")
    return Submission(directives | given, tuple(args), het="hetjob" in inside or ":" in words)


def _options(words: Sequence[str], where: str) -> tuple[dict[str, str], list[str]]:
    """Options and the words after them. Raises InputError for options that sbatch would reject."""
    tidy = [_MAYBE.sub(r"\1", _SHARED.sub(r"--exclusive-\1", word)) for word in words if word != "hetjob"]
    try:
        found, rest = getopt.getopt(tidy, _LETTERS, _LONG)
    except getopt.GetoptError as error:
        raise InputError(f"{where}: {error.msg}; sbatch --help lists its options") from None
    return {_NAMES.get(key, key[2:]): value for key, value in found}, rest


def as_record(asked: Submission, user: str, uid: int, partition: str, now: float) -> JobRecord:
    """The pending job as Slurm would show it, but for ``--mem=0``, whose memory is infinite here: that of a node.

    partition: the default. Raises InputError.
    """
    options = asked.options
    asks_for_all = "mem" in options and not _mib(options, "mem")
    gpus = {key: _gpus(options, f"gpus{key}") for key in ("", "-per-node", "-per-task", "-per-socket")}
    gres, by_node = _gres(options.get("gres", "")), gpus["-per-node"]
    gpus["-per-node"] = ",".join(filter(None, (by_node, without_gpus(gres)))) if by_node else gres
    of_job, of_node, of_task = (_counted(gpus[key]) for key in ("", "-per-node", "-per-task"))
    _check_gpus(options, of_job, of_node, of_task)
    low, high, tasks, per_node = _derived(options, of_job, of_node, of_task)
    by_tasks = 0 if of_job or of_node or of_task else _gpus_of_tasks(options, low)
    per_gpu = _whole(options, "cpus-per-gpu")
    task_cpus = _whole(options, "cpus-per-task") or of_task * per_gpu or 1
    return JobRecord(
        job_id="", name="", user=user, uid=uid, state=PENDING, submit_time=now,
        reason="JobHeldUser" if "hold" in options else "None",
        eligible_time=max(now, read_time(options["begin"], now)) if options.get("begin") else now,
        partition=options.get("partition", partition),
        time_limit=_seconds(options.get("time", "")),
        deadline=1.0 if "deadline" in options else 0.0,
        dependency=options.get("dependency", ""),
        array_tasks=options.get("array", ""), het=asked.het,
        exclusive=_exclusive(options), contiguous="contiguous" in options, segment=int("segment" in options),
        min_nodes=low, max_nodes=high, tasks=tasks, tasks_per_node=per_node,
        cpus=max(_whole(options, "ntasks"), tasks) * (_whole(options, "cpus-per-task") or 1), cpus_per_gpu=per_gpu,
        min_cpus_per_node=max(_whole(options, "mincpus"), task_cpus * (per_node if tasks > 1 and per_node else 1)),
        tmp_disk=_mib(options, "tmp"),
        memory_per_node=math.inf if asks_for_all else _mib(options, "mem"), memory_per_cpu=_mib(options, "mem-per-cpu"),
        memory_per_gpu=_mib(options, "mem-per-gpu"),
        tres_per_job=gpus[""], tres_per_node=gpus["-per-node"],
        tres_per_task=gpus["-per-task"], tres_per_socket=gpus["-per-socket"],
        tres=f"gres/gpu={by_tasks}" if by_tasks else "",
        required_nodes=options.get("nodelist", "") or options.get("nodefile", ""),
        excluded_nodes=options.get("exclude", ""), features=options.get("constraint", ""),
        reservation=options.get("reservation", ""), account=options.get("account", ""), qos=options.get("qos", ""),
    )  # fmt: skip


def _check_gpus(options: Mapping[str, str], of_job: int, of_node: int, of_task: int) -> None:
    """Raises InputError for GPUs, nodes and tasks that contradict each other, which sbatch rejects.

    of_job, of_node, of_task: the GPUs requested for each; 0 for none. Measured (docs/slurm-notes.md).
    """
    counts = {"--gpus": of_job, "--gpus-per-node": of_node, "--gpus-per-task": of_task}
    given = [(name, count) for name, count in counts.items() if count]
    for (name, count), (smaller, each) in itertools.combinations(given, 2):
        if count % each:
            raise InputError(f"{name}={count} is no multiple of {smaller}={each}; change one of them")
    low, high = _nodes(options.get("nodes", ""))
    nodes = low if low == high else 0
    if of_job and of_node and nodes not in (0, of_job // of_node):
        raise InputError(
            f"--gpus={of_job} and --gpus-per-node={of_node} mean {counted(of_job // of_node, 'node')}, not {nodes}"
        )
    if of_task and "ntasks-per-gpu" in options:
        raise InputError("--gpus-per-task and --ntasks-per-gpu exclude each other; leave out one of them")
    if of_task and not of_job and not options.keys() & {"ntasks", "nodes", "ntasks-per-node"}:
        raise InputError("--gpus-per-task needs the number of tasks; give --ntasks, too")
    tasks = _whole(options, "ntasks") or nodes * (_whole(options, "ntasks-per-node") or 1)
    if of_job and of_task and tasks not in (0, of_job // of_task):
        raise InputError(
            f"--gpus={of_job} and --gpus-per-task={of_task} mean {counted(of_job // of_task, 'task')}, not {tasks}"
        )


def _gpus_of_tasks(options: Mapping[str, str], nodes: int) -> int:
    """The GPUs that --ntasks-per-gpu means without any other option for GPUs; 0 without it. Raises InputError."""
    per_gpu = _whole(options, "ntasks-per-gpu")
    if not per_gpu:
        return 0
    if "ntasks" not in options:
        if "nodes" not in options:
            raise InputError("--ntasks-per-gpu needs the number of tasks or GPUs; give --ntasks or --gpus, too")
        return nodes
    gpus, rest = divmod(_whole(options, "ntasks"), per_gpu)
    if rest and gpus:
        raise InputError(f"--ntasks is no multiple of --ntasks-per-gpu={per_gpu}; change one of them")
    return gpus


def _derived(options: Mapping[str, str], of_job: int, of_node: int, of_task: int) -> tuple[int, int, int, int]:
    """Lower and upper bound of the nodes, tasks, and tasks per node, as sbatch derives them from options and GPUs.

    of_job, of_node, of_task: the GPUs requested for each. Raises InputError. Measured (docs/slurm-notes.md).
    """
    low, high = _nodes(options.get("nodes", ""))
    tasks, per_node = _whole(options, "ntasks"), _whole(options, "ntasks-per-node")
    if of_job and of_node:
        low = high = max(1, of_job // of_node)
    elif of_job:
        low, high = min(low, of_job), min(high, of_job)
    if of_node and of_task:
        per_node = per_node or of_node // of_task
    if tasks and options.get("nodes"):
        low, high = min(low, tasks), min(high, tasks)
    if of_job and of_task:
        tasks = of_job // of_task
    elif "ntasks-per-gpu" in options:
        by_gpu = _whole(options, "ntasks-per-gpu")
        tasks = by_gpu * (of_job or of_node * low or (0 if tasks else low)) or tasks
    return low, high, tasks or (per_node or 1) * low, per_node


def _counted(tres: str) -> int:
    """The GPUs that a text such as ``gres:gpu:a100:2,gres:gpu:h100:1`` names; 0 if Slurm could not read it either."""
    try:
        return sum(gpu_types(tres).values())
    except SlurmError:
        return 0


def _exclusive(options: Mapping[str, str]) -> str:
    shared = [name.removeprefix("exclusive-") for name in _WITH if name in options]
    return shared[0] if shared else "node" if "exclusive" in options else ""


def _gpus(options: Mapping[str, str], key: str) -> str:
    """Raises InputError."""
    parts = options[key].split(",") if options.get(key) else []
    for part in parts:
        if not _GPUS.fullmatch(part):
            raise InputError(f"--{key}: {part!r} is not a number of GPUs; use, for example, 8 or h100:8")
    return ",".join(f"gres:gpu:{part}" for part in parts)


def _gres(text: str) -> str:
    """Raises InputError."""
    if re.search("[0-9]{10}", text):
        raise InputError(f"--gres: {text!r} is too large a number")
    return ",".join(f"gres:{part}" for part in text.split(",")) if text else ""


def _nodes(text: str) -> tuple[int, int]:
    """Lower and upper bound of --nodes; one number is both. Raises InputError."""
    low, dash, high = text.partition("-")
    if not text:
        return 1, 0
    if not (re.fullmatch(_NUMBER, low) and (not dash or re.fullmatch(_NUMBER, high))):
        raise InputError(f"--nodes: {text!r} is not a number of nodes; use 2 or 2-4")
    return int(low), int(high or low)


def _whole(options: Mapping[str, str], key: str) -> int:
    text = options.get(key, "0")
    if not re.fullmatch(_NUMBER, text):
        raise InputError(f"--{key}: {text!r} is not an integer")
    return int(text)


def _mib(options: Mapping[str, str], key: str) -> float:
    text = options.get(key, "0")
    match = _SIZE.fullmatch(text)
    if match is None:
        raise InputError(f"--{key}: {text!r} is not an amount of memory; use, for example, 16G")
    return float(match[1]) * _MIB[match[2].upper()]


def _seconds(text: str) -> float:
    """--time in each of Slurm's forms: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S; 0 without a limit. Raises InputError."""
    if not text or text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return 0.0
    match = _TIME.fullmatch(text)
    if match is None:
        raise InputError(f"--time: {text!r} is not a time limit; use, for example, 30, 1:30:00 or 2-12")
    days, *parts = (None if part is None else int(part) for part in match.groups())
    a, b, c = parts
    if days is not None or c is not None:
        hours, minutes, seconds = a, b, c
    else:
        hours, minutes, seconds = 0, a, b
    return (days or 0) * 86400.0 + (hours or 0) * 3600.0 + (minutes or 0) * 60.0 + (seconds or 0)
