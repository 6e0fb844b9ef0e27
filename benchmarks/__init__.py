"""``python -m benchmarks``: one run of Ebbflow next to its peers, on one broker and the same cores.

Every figure is measured on real parts: the embedded server, Spark, a process per contestant.
Absolute figures belong to the machine they were taken on; the ratios within one run hold elsewhere
too.
"""
