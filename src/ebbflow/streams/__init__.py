"""What a pipeline keeps in NATS, and how it is read and written.

Tasks, the driver and whatever looks at a pipeline import it; nothing else names streams and
subjects. Start with ``catalogue``, which has a row for each kind of stream.
"""
