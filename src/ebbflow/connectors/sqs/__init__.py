"""Amazon SQS as a source and a sink; needs the extra ``ebbflow[sqs]``.

The registry of connectors loads ``spec``; no other package imports this one. Start with ``source``.
"""
