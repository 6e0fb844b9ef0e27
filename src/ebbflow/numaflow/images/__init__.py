"""Stand-ins for the images that Numaflow's own examples use: they run without a container."""
