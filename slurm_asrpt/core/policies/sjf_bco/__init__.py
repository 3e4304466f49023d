"""SJF-BCO on a queue that changes (Wang et al.): the planner, and the policy sjf-bco-online."""
