"""Trainings that consist of rounds of tasks: their policies, for the simulator and for pools."""
