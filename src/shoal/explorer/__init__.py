"""A page on which a deep equilibrium model can be moved about: one file, no server, no network."""

from shoal.explorer.page import explorer_page
from shoal.explorer.population import Population, population_of, two_classes
from shoal.explorer.tables import ActivationTable, activation_table, stored_tables

__all__ = [
    "ActivationTable",
    "Population",
    "activation_table",
    "explorer_page",
    "population_of",
    "stored_tables",
    "two_classes",
]
