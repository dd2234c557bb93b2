"""The experiments of Gao 2022, and its lemmas on the Gram matrix of the feature map."""
