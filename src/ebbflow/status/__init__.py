"""The state of a pipeline in one model, which every view of it draws from."""
