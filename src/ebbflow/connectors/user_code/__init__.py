"""Sources and sinks of the user's own."""
