"""Record how a real Slurm shows its topology.

    python -m tests.recorded.record_topology /tmp/lab-rec-4 [--base-port 17970] [--root build/compat/trixie]

needs root and Slurm. Brings a lab up, restarts slurmctld with each topology that this release has, writes
topology-*.txt to tests/recorded/<Slurm release>/, and takes the lab down.
"""

from __future__ import annotations

import re

from slurm_asrpt.lab.cluster import Lab
from tests.recorded.record import main, show_config

TREE = """\
SwitchName=leaf1 Nodes=n1
SwitchName=leaf2 Nodes=n2
SwitchName=leaf3 Nodes=n[3-4] LinkSpeed=100
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=core1 Switches=spine1,leaf3
"""
BLOCK = """\
BlockName=block1 Nodes=n[1-2]
BlockName=block2 Nodes=n[3-4]
BlockSizes=2,4
"""
SEVERAL = """\
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: leaf1
        nodes: n[1-2]
      - switch: leaf2
        nodes: n[3-4]
      - switch: spine1
        children: leaf[1-2]
- topology: nvlink
  cluster_default: false
  block:
    block_sizes: [2]
    blocks:
      - block: block1
        nodes: n[1-2]
      - block: block2
        nodes: n[3-4]
- topology: plain
  cluster_default: false
  flat: true
"""


def record(lab: Lab) -> dict[str, str]:
    answers = {"topology-none.txt": shown(lab)}
    change(lab, "TopologyPlugin=topology/tree", "topology.conf", TREE)
    answers["topology-tree.txt"] = shown(lab)
    release = re.search(r"SLURM_VERSION\s*=\s*(\d+)\.(\d+)", show_config(lab))
    version = (int(release[1]), int(release[2])) if release else (0, 0)
    if version >= (24, 5):
        change(lab, "TopologyPlugin=topology/block", "topology.conf", BLOCK)
        answers["topology-block.txt"] = shown(lab)
    if version >= (25, 5):
        change(lab, "PartitionName=other Topology=nvlink Nodes=n[1-4]", "topology.yaml", SEVERAL)
        answers |= {f"topology-of-{name}.txt": shown(lab, name) for name in ("nvlink", "plain")}
        answers["topology-of-default.txt"] = shown(lab)
        answers["topology-partitions.txt"] = lab.run(["scontrol", "-o", "show", "partition"]).stdout
    return answers


def change(lab: Lab, line: str, file: str, text: str) -> None:
    """Restart slurmctld with a line in slurm.conf, instead of others of its name, and another file."""
    key = line.partition(" ")[0] if line.startswith("PartitionName") else line.partition("=")[0]
    kept = [old for old in lab.slurm_conf.read_text().splitlines() if not re.match(rf"{key}(=| )", old)]
    lab.slurm_conf.write_text("\n".join([*kept, line]) + "\n")
    (lab.paths.etc / file).write_text(text)
    lab.restart_slurmctld()


def shown(lab: Lab, *name: str) -> str:
    return lab.run(["scontrol", "show", "topology", *name]).stdout


if __name__ == "__main__":
    main(__doc__, 17970, record)
