"""``python -m benchmarks``: Ebbflow next to its peers, on one broker and the same cores, in a run.

Every figure is of real parts: the embedded server, Spark, a process for each contestant. Absolute
figures belong to the machine they were taken on; what holds elsewhere are the ratios of one run.
"""
