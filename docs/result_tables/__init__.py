"""The tables of the documentation that come from the results in docs/results.

A page has, on a line of its own, ``<!-- table: NAME ARGUMENTS -->``, then the table, then
``<!-- end -->``. ``make tables`` writes what is in between anew; a test checks that this changes
nothing. So no number in such a table is typed by hand.
"""

from result_tables.pages import PAGES, rendered
from result_tables.results import EXPERIMENTS_NOT_RUN, committed

__all__ = ["EXPERIMENTS_NOT_RUN", "PAGES", "committed", "rendered"]
