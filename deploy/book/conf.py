"""The book of docs/, as scripts/book builds it with Sphinx: the README is the start page."""

import re
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.rust import RustLexer
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
PACKAGE = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]

project = "seriatim"
html_title = f"seriatim {PACKAGE['version']}"
extensions = ["myst_parser"]
root_doc = "README"
include_patterns = ["README.md", "docs/**.md"]
# Sphinx looks into no other folder.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.name not in ("README.md", "docs")]
# Headings get the anchors that a code host gives them.
myst_heading_anchors = 6
# The text stays as it is: a `--` is no dash.
smartquotes = False
html_theme = "furo"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_show_copyright = False
html_copy_source = False
html_use_index = False


def navigation() -> str:
    """Returns the list of pages in the margin: its order is that of "All pages" in the guide, and the lab is last."""
    _, pages = (ROOT / "docs/guide.md").read_text().split("\n## All pages\n")
    groups = {"Start": ["Start <self>", "docs/guide"]}
    for line in pages.splitlines():
        if line.endswith(":"):
            caption = line[:-1]
            groups[caption] = []
        elif page := re.match(r"- \[.*?\]\(([\w-]+)\.md\)", line):
            groups[caption].append(f"docs/{page[1]}")
    groups["For developers"] = [f"docs/lab/{page.stem}" for page in sorted((ROOT / "docs/lab").glob("*.md"))]
    trees = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```"])
        for caption, names in groups.items()
    ]
    return "\n\n" + "\n\n".join(trees) + "\n"


def add_navigation(_: Sphinx, page: str, text: list[str]) -> None:
    """Adds the list of pages to the README, which has none in the repository."""
    if page == root_doc:
        text[0] += navigation()


class Repository(SphinxTransform):
    """Leads the links to files that are no page of the book to the repository."""

    default_priority = 1

    def apply(self, **_: Any) -> None:
        """Changes the links of a page. A link to a file that does not exist stays as it is, and Sphinx reports it."""
        links = [*self.document.findall(addnodes.download_reference), *self.document.findall(addnodes.pending_xref)]
        for link in links:
            if link["refdomain"] == "doc":
                if link["reftarget"] in self.env.found_docs:
                    continue
                path, anchor = ROOT / f"{link['reftarget']}.md", link["reftargetid"]
            else:
                path, anchor = (ROOT / self.env.docname).parent / link["reftarget"], None
            path = path.resolve()
            if path.exists() and path.is_relative_to(ROOT):
                kind = "tree" if path.is_dir() else "blob"
                url = f"{PACKAGE['repository']}/{kind}/main/{path.relative_to(ROOT)}" + (f"#{anchor}" if anchor else "")
                link.replace_self(nodes.reference("", "", *link.children, refuri=url))


def setup(app: Sphinx) -> None:
    """Adds the parts above to Sphinx."""
    app.connect("source-read", add_navigation)
    app.add_transform(Repository)
    # The languages of blocks that Pygments does not know. A diagram stays text: no script may come from elsewhere.
    app.add_lexer("rust,no_run", RustLexer)
    app.add_lexer("mermaid", TextLexer)
