"""The demo: an orders pipeline with late customers, a store that fails, orders nobody can take."""
