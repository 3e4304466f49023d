"""SJF-BCO with online arrivals (Wang et al.): the planner, and the policy sjf-bco-online."""
