"""How Sphinx makes the site of these documents: `make docs`, strictly.

Sphinx reads a copy of this folder, in `build/docs`. The pages are Markdown that reads well in the
repository, too. So links that lead out of `docs/` are resolved here: documents that lie elsewhere
become pages of the site; a link to anything else becomes its path.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from ciel import __version__

ROOT = Path(__file__).parents[2]
PROJECT_PAGES = [
    *("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("examples/README.md", "scc/README.md", "scc/FORMAT.md"),
]
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")

project, author, release = "ciel", "the ciel authors", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
myst_heading_anchors = 4
exclude_patterns = ["schemas", "skywriting/tutorial/*"]
html_theme = "furo"
html_title = f"ciel {release}"
html_show_sphinx = False
suppress_warnings = ["misc.highlighting_failure"]  # what a program printed need not be code
default_role = "literal"  # docstrings are written as Markdown
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
linkcheck_timeout = 30


def copy_project_pages(app):
    """Copy the documents outside of `docs/` into its folder `project`, and generate two lists.

    The lists are of the decisions and of the modules.
    """
    for name in PROJECT_PAGES:
        page = Path(app.srcdir, "project", name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text((ROOT / name).read_text())
    rows = [f"adr/{path.stem}" for path in sorted(Path(app.srcdir, "adr").glob("[0-9]*.md"))]
    index = "# Decisions\n\nThe design decisions of ciel with their reasons, in order.\n\n"
    index += "```{toctree}\n:maxdepth: 1\n\n" + "\n".join(rows) + "\n```\n"
    Path(app.srcdir, "decisions.md").write_text(index)
    modules = subprocess.check_output([sys.executable, ROOT / ".ci/map", "--markdown"])
    Path(app.srcdir, "modules.md").write_bytes(modules)


def resolve_links(app, docname, source):
    """Rewrite the links of a page that do not lead to a page of the site."""
    original = ROOT / (
        docname.removeprefix("project/") if docname.startswith("project/") else f"docs/{docname}"
    )
    here = Path(app.srcdir, docname).parent

    def resolved(match):
        text, target, anchor = match[1], match[2], match[3] or ""
        path = Path(os.path.normpath(original.parent / target))
        if not path.exists():
            return match[0]  # Sphinx reports the broken link
        inside = path.relative_to(ROOT)
        if str(inside) in PROJECT_PAGES:
            path = Path(app.srcdir, "project", inside)
        elif inside.parts[0] == "docs" and path.suffix == ".md":
            path = Path(app.srcdir, *inside.parts[1:])
        else:
            return text if f"`{inside}`" == text else f"{text} (`{inside}`)"
        return f"[{text}]({os.path.relpath(path, here)}{anchor})"

    pieces = re.split(r"(^```.*?^```$)", source[0], flags=re.M | re.S)
    source[0] = "".join(
        piece if piece.startswith("```") else LINK.sub(resolved, piece) for piece in pieces
    )


def setup(app):
    """Register the functions above."""
    app.connect("builder-inited", copy_project_pages)
    app.connect("source-read", resolve_links)
