"""The claims of Du 2018: linear convergence, eigenvalues against depth, Gram stability."""
