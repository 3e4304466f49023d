"""python -m papers"""

from papers.command import main, reproduce_all

main("papers", reproduce_all)
