"""Small samples of published traces; README.md has their origins and licences."""

from pathlib import Path

PHILLY = Path(__file__).parent / "philly-sample.csv"
ITP = Path(__file__).parent / "itp-sample.csv"
HELIOS = Path(__file__).parent / "helios-sample.csv"
NAMED = {"philly": PHILLY, "itp": ITP, "helios": HELIOS}
