"""The experiments of Ling 2024, with exact kernels beside the paper's estimates."""
