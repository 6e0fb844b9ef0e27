"""Code that is written for pynumaflow, run in the worker as it is, without gRPC."""
