"""Searches and gather-heavy loops, each in several forms behind one function.

One module per operation holds its function, with the contract, and the plain JAX form ("xla"),
which is the reference and runs everywhere. Beside it lie the other forms, which give the same
numbers up to rounding: compiled host code for CPUs (`*_host`) and GPU kernels (`*_pallas`).

    operation        function                       forms
    neighbors        knn                            xla, host (k-d tree, Open3D, KeOps)
    walks            exact_walks, collect_walks     xla, host
    walk_attention   attend_along_walks             xla, host, pallas
    sparse_rows      multiply, multiply_transposed  xla, host
    annular_sums     annular_sums                   xla, host
    counterparts     counterparts                   xla, host
    point_edges      attend_to_points               host

`choice` says which form runs where, `derivatives` makes every gradient that is written by hand,
`host`, `ffi` and `compiled` bring compiled code into jitted programs, `cores` says how many cores
it takes, `vectors` and `lanes` make vectors where numba makes none.

The choice is part of the structure that an operation works on: `SparseRows` and `Walks`
carry `kernels`, given once where a graph is made and handed on to all that is derived
from it. So the formulas of masks and attention do not mention it, walks are never read by another
form than the one that they were made for, and, as it is a static field, a program compiled for one
form is not used for another. Operations without such a structure (`knn`, `annular_sums`,
`counterparts`) take it as an argument.
"""

import os

# OpenMP's threads sleep when a parallel loop has ended. They would spin for milliseconds, on the
# core that the rest of the program runs on (benchmarks/waiting.py). Read when OpenMP is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
