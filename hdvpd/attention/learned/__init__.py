"""Masks with parameters: how they are learned, what is prepared for them, the mask that follows."""
