"""Evaluate from a clone: `python eval.py runs/demo` is `hdvpd eval runs/demo`."""

import sys

from hdvpd.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["eval", *sys.argv[1:]]))
