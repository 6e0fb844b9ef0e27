"""An orders pipeline: late customers, a store that is sometimes down, orders nobody can take."""
