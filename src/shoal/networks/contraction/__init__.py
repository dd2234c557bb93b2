"""Norms of weights, certified, and what keeps a recurrent layer a contraction."""
