"""Write the tables of all pages anew."""

from result_tables.pages import PAGES, rendered

for page in PAGES:
    text = page.read_text(encoding="utf-8")
    page.write_text(rendered(text), encoding="utf-8")
