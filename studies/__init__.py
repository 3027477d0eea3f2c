"""Studies: experiments about a part of hdvpd by itself, with figures and numbers.

They use the package and are no part of it: `python -m studies` in a clone lists them.
"""
