"""Data sets made here: two arms in MuJoCo (`bimanual`), a scene in closed form (`synthetic`)."""
