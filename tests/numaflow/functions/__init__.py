"""Functions in Go, Rust, Java and Python on Numaflow's public SDKs, and how tests build them."""
