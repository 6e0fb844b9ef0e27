"""The server side of the protocol: Ebbflow's functions, served to Numaflow in their container.

Only the command ``ebbflow serve-udf`` imports it. Start with ``function_server``.
"""
