"""python -m papers.asrpt"""

from papers.command import main, reproduce_asrpt

main("papers.asrpt", reproduce_asrpt)
