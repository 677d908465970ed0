"""Linear algebra of task vectors: singular directions, orthonormal bases, and coefficients in such a basis.

Read in this order: :mod:`bolt.spectral.directions` (SVD of one source's weight matrix), :mod:`bolt.spectral.bases` (one
basis of several sources), :mod:`bolt.spectral.sources` (the interface to the source models),
:mod:`bolt.spectral.spectral_linear` (a linear layer whose only trainable tensor is its coefficients) and
:mod:`bolt.spectral.spectral_change` (the change of a whole tower).
"""
