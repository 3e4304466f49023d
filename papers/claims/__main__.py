"""python -m papers.claims"""

from papers.command import main, print_claims

main("papers.claims", print_claims)
