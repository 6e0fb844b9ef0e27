"""The serve sink, and stores of the user's own."""
