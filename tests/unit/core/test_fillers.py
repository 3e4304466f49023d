"""Fillers of asrpt-gated: who may use GPUs that are kept for another job, and when they are given back."""

import json

import pytest

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import Preempt, Run, Start
from tests.benches.gated import Bench, job, unchecked_policy

