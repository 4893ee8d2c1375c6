"""The reference: directives, docstrings as reST, and names that can be imported from two places."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any, ClassVar

import docstrings
import inventory
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from posquad.labels import labels

VARIABLE = re.compile(r"(?<![\w.'\"])A(?![\w'\"(:=])")
EITHER = re.compile(r"~?(?:torch\.)?Tensor \| ~?(?:numpy\.)?ndarray")
KINDS = ((inspect.isclass, "autoclass"), (callable, "autofunction"))


class DocumentModule(SphinxDirective):
    """Document the public names of a module: its docstring, a table, and each name."""

    required_arguments = 1
    option_spec: ClassVar = {
        "quiet": directives.flag,  # without the docstring and the table
        "first": directives.unchanged,  # names to list first
    }

    def run(self) -> list[nodes.Node]:
        """Write the autodoc directives for the module."""
        module_name = self.arguments[0]
        module = importlib.import_module(module_name)
        known = inventory.documented()
        names = [n for n in inventory.public_names(module_name) if f"{module_name}.{n}" in known]
        first = self.options.get("first", "").split()
        names.sort(key=lambda name: first.index(name) if name in first else len(first))
        lines = [] if "quiet" in self.options else [f".. automodule:: {module_name}", ""]
        lines += [f".. currentmodule:: {module_name}", ""]
        if "quiet" not in self.options and len(names) > 1:
            lines += [".. autosummary::", "   :nosignatures:", ""]
            lines += [*(f"   {name}" for name in names), ""]
        for name in names:
            lines += self.entry(module_name, name, getattr(module, name))
        self.env.note_dependency(inspect.getsourcefile(module) or "")
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)

    @staticmethod
    def entry(module_name: str, name: str, thing: Any) -> list[str]:
        """The autodoc directive for one name."""
        kind = next((kind for test, kind in KINDS if test(thing)), "autodata")
        if inspect.isclass(thing) and issubclass(thing, Exception):
            kind = "autoexception"
        entry = [f".. {kind}:: {module_name}.{name}"]
        if kind == "autodata":
            entry.append("   :no-value:")
        if kind in ("autoclass", "autoexception"):
            entry += ["   :members:", "   :member-order: bysource"]
            if any(id(base) in inventory.homes() for base in thing.__bases__):
                entry.append("   :show-inheritance:")
        return [*entry, ""]


class OtherModules(SphinxDirective):
    """Document those modules of a package that `document-module` does not name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Write name, docstring, and names not documented elsewhere, for each module."""
        lines: list[str] = []
        for module_name in inventory.modules(self.arguments[0]):
            module = importlib.import_module(module_name)
            known = inventory.documented()
            names = [
                n for n in inventory.public_names(module_name) if f"{module_name}.{n}" in known
            ]
            lines += [f".. rubric:: {module_name}", "", f".. automodule:: {module_name}", ""]
            lines += [f".. currentmodule:: {module_name}", ""]
            for name in names:
                lines += DocumentModule.entry(module_name, name, getattr(module, name))
            self.env.note_dependency(inspect.getsourcefile(module) or "")
        return self.parse_text_to_nodes("\n".join(lines))


class PublicNames(SphinxDirective):
    """The table of what `import posquad` offers."""

    def run(self) -> list[nodes.Node]:
        """Write a summary of every top-level name, with links to its documentation."""
        lines = [".. currentmodule:: posquad", "", ".. autosummary::", "   :nosignatures:", ""]
        lines += [f"   {name}" for name in inventory.public_names("posquad")]
        return self.parse_text_to_nodes("\n".join(lines))


def rewrite_docstring(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Convert a docstring to reST, before napoleon reads its sections."""
    if what == "data" and "\n".join(lines).strip() == inspect.getdoc(type(thing)):
        lines.clear()  # the docstring of dict does not help here
    text = "\n".join(lines + docstrings.complete(thing))
    lines[:] = docstrings.converted(text, set(labels())).split("\n")


def short_signature(
    app: Sphinx, what: str, name: str, thing: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """Hide the constructors of result classes, which only the library calls."""
    if what == "class" and hasattr(thing, "__dataclass_fields__"):
        return "", ""
    if what == "exception" or (what == "class" and hasattr(thing, "__members__")):
        return "", ""
    if signature is None:
        return None
    # The type variable A is one of two arrays; what matters to a reader is that it is an array.
    return _with_arrays(signature), _with_arrays(returned or "")


def _with_arrays(text: str) -> str:
    return VARIABLE.sub("Array", EITHER.sub("Array", text))


def skip_routing(
    app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Skip `set_fit_request` and the like, which scikit-learn adds to every estimator."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def find_twin(app: Sphinx, env: Any, node: Any, contents: Any) -> nodes.reference | None:
    """Resolve `posquad.recover` to where the same object is documented."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    candidates = [target]
    for prefix in (node.get("py:module"), "posquad"):
        candidates.append(f"{prefix}.{target}")
    objects = env.domains["py"].objects
    for candidate in candidates:
        if not candidate.startswith("posquad"):
            continue
        known = inventory.home(candidate)
        if known in objects:
            entry = objects[known]
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, contents, known
            )
    return None


def tidy(app: Sphinx, doctree: nodes.document) -> None:
    """Link code that is a public name or a label, and remove blank ends of examples."""
    known, docname = labels(), app.env.current_document.docname
    modules = {module_name for _, module_name in inventory.documented_modules()}
    for literal in list(doctree.findall(nodes.literal)):
        text = literal.astext().removesuffix("()")
        if isinstance(literal.parent, nodes.reference | addnodes.pending_xref):
            continue
        if text in known:
            if docname == "labels":
                continue
            where = {"refdomain": "std", "reftype": "ref", "reftarget": docstrings.anchor(text)}
            where["refexplicit"] = True
        elif text in modules:
            where = {"refdomain": "py", "reftype": "mod", "reftarget": text}
        elif text.startswith("posquad.") and inventory.home(text):
            where = {"refdomain": "py", "reftype": "obj", "reftarget": text}
        else:
            continue
        link = addnodes.pending_xref("", refdoc=docname, **where)
        literal.replace_self(link)
        link += literal
    for block in doctree.findall(nodes.literal_block):
        text = block.astext().rstrip()
        block.rawsource = text
        block.children = [nodes.Text(text)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the hooks."""
    app.add_directive("document-module", DocumentModule)
    app.add_directive("other-modules", OtherModules)
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-docstring", rewrite_docstring, priority=400)
    app.connect("autodoc-process-signature", short_signature)
    app.connect("autodoc-skip-member", skip_routing)
    app.connect("missing-reference", find_twin)
    app.connect("doctree-read", tidy)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
