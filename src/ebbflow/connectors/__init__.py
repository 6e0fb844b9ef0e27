"""Sources and sinks: one module, or one folder, for each system on the other side.

    base       what a connector is made of: sections, ``@source`` and ``@sink``, settings
    registry   all connectors, also those that other packages ship
    plans      what sections become, as plain data for workers
    builtin    the sections of log, blackhole, generator and file

In a folder ``spec`` has the sections, ``source`` and ``sink`` what runs. CONTRIBUTING shows how to
add one. ``spec`` and what is above it import the registry and the plans. Start with ``base``.
"""
