"""What is reported of chunks: the observers of the chunk loop, and the driver's side of them."""
