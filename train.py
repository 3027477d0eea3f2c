"""Train from a clone: `python train.py demo` is `hdvpd train demo`."""

import sys

from hdvpd.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
