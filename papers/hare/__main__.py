"""python -m papers.hare"""

from papers.command import main, reproduce_hare

main("papers.hare", reproduce_hare)
