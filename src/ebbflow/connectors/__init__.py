"""Sources and sinks, one folder for each system on the other side.

    registry   the table of kinds, which the rest of the engine reads
    section    what a connector has to give: sections of a spec that become plans
    plans      such plans, as plain data for workers

In a folder ``spec`` has the sections, ``source`` and ``sink`` what runs, and ``settings``, where it
is there, what both ends know. CONTRIBUTING shows how to add one.
"""
