"""python -m papers.sjf_bco"""

from papers.command import main, reproduce_sjf_bco

main("papers.sjf_bco", reproduce_sjf_bco)
