"""Docstrings of shoal, made ready for Markdown."""

import re

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`(~?)([^`]+)`")
MATH = re.compile(r":math:`([^`]+)`")
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)  # one is a section, too


class Roles(griffe.Extension):
    """Turns cross references and formulas in the notation of Sphinx into that of the site."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            text = ROLE.sub(reference, obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", MATH.sub(r"$\1$", text))


def reference(role: re.Match[str]) -> str:
    """A link to what a role names, if it is on the site, and its name otherwise."""
    shown = role[2].rpartition(".")[2] if role[1] else role[2]
    return f'<autoref identifier="{role[2]}" optional><code>{shown}</code></autoref>'
