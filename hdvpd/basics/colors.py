"""The colours of every plot: Okabe and Ito's, which stay apart for colour-blind readers."""

BLUE = "#0072b2"
VERMILION = "#d55e00"
GREEN = "#009e73"
PURPLE = "#cc79a7"
ORANGE = "#e69f00"
SKY = "#56b4e9"
GRAY = "#707070"
"""For what is only compared with."""

SERIES = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, "#000000")
"""Of several of one kind, in this order."""
