"""The experiments of Ling 2023, and its theorems on the DEQ at initialization."""
