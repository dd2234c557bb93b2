"""Experiments on shoal: the papers' figures, tables and theorems run again, and its own findings.

``python -m experiments`` lists them. They use public names of shoal alone, and are no part of it.
"""
