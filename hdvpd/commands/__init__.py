"""The verbs of the command line: frozen dataclasses, one file per verb or group of verbs."""
