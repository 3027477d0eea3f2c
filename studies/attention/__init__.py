"""Attention that no model of hdvpd is made of: references, series, masks of other structures."""
