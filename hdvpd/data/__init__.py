"""Data sets of robot RGB-D video: the native format, reading windows, simulation."""
