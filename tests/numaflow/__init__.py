"""Functions over Numaflow's gRPC protocol, with real servers on real SDKs."""
