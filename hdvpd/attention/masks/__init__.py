"""Masks over attention: square matrices with a fast product (arXiv 2107.07999, 2410.03462)."""
