"""The rules that a model must keep, one module a subject. A breach is a finding.

steps      source, udf and sink, their user code and their retries
vertices   the vertices of a pipeline, and a MonoVertex as a whole
graph      edges, and the graph that they make
tags       the conditions of edges and of a bypass
spark      what works on whole batches: SQL, DataFrame functions, Spark sinks
support    what the model knows and the runtime does not do yet
"""
