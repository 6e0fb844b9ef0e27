"""Built-in sources and sinks, one folder for each outside system."""
