"""Series and surfaces that stand for kernels, each verified off the points it was fitted at."""
