"""What must hold of a model, one module a subject. A rule yields a finding for each breach.

steps      source, udf and sink, their user code and their retries
vertices   the vertices of a pipeline, and a MonoVertex as a whole
graph      edges, and the graph that they make
tags       the conditions of edges and of a bypass
spark      what works on whole batches: SQL, DataFrame functions, Spark sinks
support    what the model knows and the runtime does not do yet
"""
