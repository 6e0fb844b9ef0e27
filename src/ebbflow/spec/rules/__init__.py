"""The rules that a model must keep, one module a subject. A breach is a finding.

vertices   a vertex or MonoVertex, and its source, udf and sink, their user code and their retries
graph      edges, and the graph that they make
tags       the conditions of edges and of a bypass
spark      what works on whole batches: SQL, DataFrame functions, Spark sinks
audit      the table of what became of messages
support    what the model knows and the runtime does not do yet
"""
