"""The other side of the protocol: Ebbflow's functions, served to Numaflow in their container."""
