"""Recordings of scenes in three dimensions: in a browser, and as files."""
