"""The rules of CONTRIBUTING.md that a program can check: sizes, circles, the direction of imports, constants."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES, FUNCTION_LINES = 700, 100
NATIVE = (".c", ".cpp", ".h")
CODE = (*NATIVE, ".py", ".js")
FOLDERS = ("phantora", "stub", "viewers", "samples", "tests", "benchmarks", "validation")
BUNDLES = ("viewers/arrow.js",)  # written by a bundler

# What the modules of a package may import at run time, other than their own.
ALLOWED = {
    "hardware": {"wire"},
    "fold": set(),
    "wire": set(),
    "stubs": {"wire"},
    "ttir": set(),
    "cost": {"hardware", "ttir", "wire"},
    "trace": {"fold", "wire"},
    "dumps": {"trace"},
    "framework_logs": {"trace"},
    "importers": {"cost", "hardware", "trace", "wire"},
    "calibration": {"cost", "hardware", "trace"},
    "sim": {"cost", "fold", "hardware", "trace", "wire"},
    "profile": {"cost", "hardware", "ttir", "wire"},
    "rank": {"fold", "stubs", "ttir", "wire"},
    "launch": {"fold", "rank"},
    "nodes": {"launch", "sim", "stubs", "wire"},
    "runs": {
        "cost",
        "fold",
        "hardware",
        "importers",
        "launch",
        "nodes",
        "profile",
        "rank",
        "sim",
        "stubs",
        "trace",
        "wire",
    },
    "view": {"trace"},
    "jobs": {"trace", "wire"},
    "sweeps": {"jobs", "fold", "hardware", "launch", "nodes", "trace", "view", "wire"},
}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def sources(suffixes: tuple[str, ...]) -> list[Path]:
    found = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in suffixes and p.is_file()]
    return sorted(p for p in found if str(p.relative_to(ROOT)) not in BUNDLES and "node_modules" not in p.parts)


def test_no_file_is_long() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources(CODE)}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES} == {}


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    def visit(node: ast.AST) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):  # of statements: expressions hold none
            for child in getattr(node, part, ()) if not isinstance(node, ast.expr) else ():
                yield from visit(child)

    yield from visit(tree(path))


QUOTED = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""", re.DOTALL)
BODY = re.compile(r"(?:\)\s*(?:const\s*|noexcept\s*|override\s*|->\s*[\w:<>*&\s]+?)*|=>\s*)\{")


def braced_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Functions, methods and lambdas of C, C++ and JavaScript: blocks behind parentheses or an arrow."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = QUOTED.sub(blank, path.read_text())
    ends: dict[int, int] = {}
    opened: list[int] = []
    for place in re.finditer(r"[{}]", text):
        if place[0] == "{":
            opened.append(place.start())
        elif opened:
            ends[opened.pop()] = place.start()
    for body in BODY.finditer(text):
        head = text[max(text.rfind(mark, 0, body.start()) for mark in ";{}") + 1 : body.start()].strip()
        if not re.match(r"(?:else\s+)?(?:if|for|while|switch|catch)\b", head):
            begin = text.rfind(head, 0, body.end()) if head else body.start()
            name = head.partition("(")[0].split()
            yield name[-1] if name else "?", text.count("\n", begin, ends.get(body.end() - 1, len(text))) + 1


def test_no_function_is_long() -> None:
    long: dict[str, int] = {}
    for path in sources(CODE):
        functions = python_functions(path) if path.suffix == ".py" else braced_functions(path)
        long |= {f"{path.relative_to(ROOT)}: {name}": n for name, n in functions if n > FUNCTION_LINES}
    assert long == {}


LONG = [
    "static int f(int a,\n             int b) {\nLINES}\n",
    "class X {\n  int f(int a) const {\nLINES  }\n};\n",
    "const f = (a) => {\nLINES};\n",
    "int f(int a)\n{\nif (a) {\nLINES}\n}\n",
    "auto f = [](int a) -> int {\nLINES};\n",
]


@pytest.mark.parametrize("form", LONG)
def test_long_functions_are_found(tmp_path: Path, form: str) -> None:
    path = tmp_path / "long.cpp"
    path.write_text(form.replace("LINES", "  a += '{' + 1; // }\n" * FUNCTION_LINES))
    assert max(length for _, length in braced_functions(path)) > FUNCTION_LINES
    path.write_text(form.replace("LINES", "  a += '{' + 1; // }\n" * 50) * 3)
    assert max(length for _, length in braced_functions(path)) < FUNCTION_LINES


def test_functions_are_found_in_native_sources() -> None:
    """The check above is worth something: it sees most of the functions."""
    assert sum(1 for path in sources((".c", ".cpp")) for _ in braced_functions(path)) > 1800
    assert sum(1 for path in sources((".js",)) for _ in braced_functions(path)) > 100


def test_no_circle_of_includes() -> None:
    graph = nx.DiGraph()
    roots = (ROOT / "stub", ROOT / "phantora" / "sim" / "engine")
    for path in sources(NATIVE):
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            for target in (root / name for root in (path.parent, *roots)):
                if target.exists():
                    graph.add_edge(str(path.relative_to(ROOT)), str(target.resolve().relative_to(ROOT)))
                    break
    assert graph.number_of_edges() > 100
    assert list(nx.simple_cycles(graph)) == []


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules of phantora that a module imports, at its top or in a function, and whether for its types alone."""

    def visit(node: ast.AST, typing: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((alias.name, typing) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                yield from ((f"{child.module}.{alias.name}", typing) for alias in child.names)
            else:
                guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                yield from visit(child, typing or guard)

    yield from ((name, t) for name, t in visit(tree(path), False) if name.startswith("phantora"))


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "phantora").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def module_of(name: str, known: dict[str, Path]) -> str:
    return name if name in known else name.rpartition(".")[0]


def test_no_circle_of_imports() -> None:
    """Nor one that an import within a function, or for types alone, would hide."""
    known = modules()
    graph = nx.DiGraph()
    for name, path in known.items():
        for imported, _ in imports(path):
            if (target := module_of(imported, known)) != name and not name.startswith(target + "."):
                graph.add_edge(name, target)
    assert [circle for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []


# What may import the command line and the functions of users.
TOP = {"cli": {"phantora.__main__"}, "api": {"phantora", "phantora.pytest_plugin"}}


def test_nothing_imports_the_command_line_or_the_functions_of_users() -> None:
    """Not even for types: the library knows neither."""
    known = modules()
    wrong = [
        f"{name} imports {imported}"
        for name, path in known.items()
        for imported, _ in imports(path)
        for top, users in TOP.items()
        if module_of(imported, known).startswith(f"phantora.{top}")
        and name not in users
        and not name.startswith((f"phantora.{top}", "phantora.cli"))
    ]
    assert wrong == []


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_point_one_way(package: str) -> None:
    known = modules()
    wrong: list[str] = []
    for name, path in known.items():
        if not name.startswith(f"phantora.{package}"):
            continue
        for imported, typing in imports(path):
            other = (module_of(imported, known) + "..").split(".")[1]
            if not typing and other in ALLOWED and other != package and other not in ALLOWED[package]:
                wrong.append(f"{name} imports {imported}")
    assert wrong == []


MOST_PARAMETERS = 8
MANY_PARAMETERS = {
    "phantora/api.py: compare",
    "phantora/api.py: plan",
    "phantora/api.py: goodput",
    "phantora/api.py: sweep",  # of users, by keyword
    "phantora/rank/shims/deepspeed.py: multi_tensor_adam",  # DeepSpeed's signature
    # FlashAttention-4's signatures
    "tests/unit/test_cute_calls.py: forward",
    "tests/unit/test_cute_calls.py: backward",
    # DeepEP's signatures
    "phantora/rank/deep_ep/buffer.py: dispatch",
    "phantora/rank/deep_ep/hybrid.py: dispatch_with_permute",
    # signatures of kernels of the Hugging Face hub
    *(
        f"phantora/rank/standins/hub_attention.py: flash_attn_{name}"
        for name in ("func", "varlen_func", "with_kvcache")
    ),
    "phantora/rank/standins/hub_layers.py: loss",
    # signatures of the compiled halves of apex, DeepGEMM, flash-attn, causal-conv1d and mamba-ssm
    "phantora/rank/standins/deep_gemm_attention.py: fp8_fp4_paged_mqa_logits",
    "phantora/rank/standins/apex.py: backward_affine",
    "phantora/rank/standins/flash_attn_2.py: bwd",
    "phantora/rank/standins/flash_attn_2.py: fwd",
    "phantora/rank/standins/flash_attn_2.py: fwd_kvcache",
    "phantora/rank/standins/flash_attn_2.py: varlen_bwd",
    "phantora/rank/standins/flash_attn_2.py: varlen_fwd",
    "phantora/rank/standins/flash_attn_3.py: bwd",
    "phantora/rank/standins/flash_attn_3.py: fwd",
    "phantora/rank/standins/state_space.py: causal_conv1d_bwd",
    "phantora/rank/standins/state_space.py: scan_bwd",
    "phantora/rank/standins/state_space.py: scan_fwd",
}


def test_no_function_has_many_parameters() -> None:
    found = set()
    for path in sources((".py",)):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if any(ast.unparse(one).startswith("triton.jit") for one in node.decorator_list):
                    continue  # a kernel takes an argument for each tensor, stride and size
                given = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if len([name for name in given if name not in ("self", "cls")]) > MOST_PARAMETERS:
                    found.add(f"{path.relative_to(ROOT)}: {node.name}")
    assert found == MANY_PARAMETERS


def test_no_parameter_of_the_core_is_an_untyped_dictionary() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {node.name}({one.arg})"
        for package in ("launch", "rank", "runs", "sim")
        for path in (ROOT / "phantora" / package).rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for one in (*node.args.args, *node.args.kwonlyargs)
        if one.annotation is not None and ast.unparse(one.annotation) == "dict[str, Any]"
    ]
    assert found == []


def number(text: str) -> float | None:
    """Value of an expression of numbers alone, in C or Python."""
    text = re.sub(r"\((?:size_t|u?int\d+_t)\)", "", text)
    text = re.sub(r"(?<![\w.])(0[xX][\da-fA-F]+|[\d.]+(?:e-?\d+)?)[uUlLfF]*(?![\w.])", r"\1", text)
    found = re.fullmatch(r"[\s()+*/<>\-.xXa-fA-F\d]+", text) and not re.match(r"[a-zA-Z]", text)
    try:
        return float(eval(text, {"__builtins__": {}})) if found else None
    except (ArithmeticError, NameError, SyntaxError, TypeError):
        return None


def constants(path: Path) -> Iterator[tuple[str, float | str]]:
    """Names that a module binds to a number or a text, one by one or several at once."""
    for node in tree(path).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        for name, value in pairs:
            if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield name.id, value.value
            elif isinstance(name, ast.Name) and value and (known := number(ast.unparse(value))) is not None:
                yield name.id, known


NATIVE_CONSTANT = re.compile(
    r"^\s*(?:#define\s+(\w+)\s+|(?:static |inline )*const(?:expr)? [\w: ]+? (\w+) = )([^;/\n]+?);?\s*(?://.*)?$",
    re.MULTILINE,
)


def native_constants(path: Path) -> Iterator[tuple[str, float]]:
    """Names that C or C++ gives to a number, without the prefixes that Python's have not."""
    for defined, declared, value in NATIVE_CONSTANT.findall(path.read_text()):
        if (known := number(value)) is not None:
            yield (defined or declared).removeprefix("PH_").removeprefix("PHC_"), known


def literals(path: Path) -> Iterator[tuple[str, str]]:
    """Tuples, dictionaries and patterns that a module binds to a name, as text."""
    for node in tree(path).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or (value := node.value) is None:
            continue
        pattern = isinstance(value, ast.Call) and ast.unparse(value.func) == "re.compile"
        if pattern or isinstance(value, ast.Tuple | ast.Dict | ast.Set | ast.List):
            names = {child.id for child in ast.walk(value) if isinstance(child, ast.Name)} - {"re"}
            text = ast.unparse(value)
            if not names and len(text) > 15:
                yield text, str(path.relative_to(ROOT))


def test_no_tuple_dictionary_or_pattern_is_written_twice() -> None:
    found: dict[str, list[str]] = {}
    for path in (ROOT / "phantora").rglob("*.py"):
        for text, name in literals(path):
            found.setdefault(text, []).append(name)
    assert len(found) > 100
    assert {text: files for text, files in found.items() if len(files) > 1} == {}


OWN = {"ERROR", "FORMAT"}  # every family's error bar, every file format's version


def test_no_constant_is_defined_twice() -> None:
    where: dict[tuple[str, float | str], list[str]] = {}
    for path in (ROOT / "phantora").rglob("*.py"):
        for name, value in constants(path):
            if name not in OWN:
                where.setdefault((name, value), []).append(str(path.relative_to(ROOT)))
    native = 0
    for path in sources(NATIVE):
        for name, value in native_constants(path):
            where.setdefault((name, value), []).append(str(path.relative_to(ROOT)))
            native += 1
    assert len(where) > 250 and native > 50
    assert {key: files for key, files in where.items() if len(files) > 1} == {}


NUMBER = re.compile(r"(?<![\w.])(0[xX][\da-fA-F]+|\d+(?:\.\d+)?(?:e-?\d+)?)[uUlLfF]*(?![\w.])")
TABLES = (
    "stub/abi/",
    "phantora/profile/operator_grid.py",
    "stub/cuda/cupti/",
)  # NVIDIA's numbers; shapes of known models


def numbers(path: Path) -> Iterator[float]:
    """Numbers with a meaning: five digits and more, none of them a power of two or next to one."""
    text = path.read_text()
    if path.suffix == ".py":
        found = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        values = [float(value) for value in found if isinstance(value, int | float)]
    else:
        code = re.sub(r"//[^\n]*|/\*.*?\*/|\"[^\"\n]*\"", "", text, flags=re.DOTALL)
        values = [float(int(n, 16)) if n[:2].lower() == "0x" else float(n) for n in NUMBER.findall(code)]
    for value in values:
        digits = f"{value:.12e}".partition("e")[0].rstrip("0").replace(".", "")
        near = (int(value) + step for step in (-1, 0, 1)) if value.is_integer() else ()
        if len(digits) >= 5 and not any(n & (n - 1) == 0 for n in near):
            yield value


def test_no_long_number_stands_in_two_files() -> None:
    where: dict[float, set[str]] = {}
    for folder in ("phantora", "stub"):
        for path in (p for p in (ROOT / folder).rglob("*") if p.suffix in (*NATIVE, ".py")):
            if not (name := str(path.relative_to(ROOT))).startswith(TABLES):
                for value in numbers(path):
                    where.setdefault(value, set()).add(name)
    assert len(where) > 30
    assert {value: files for value, files in where.items() if len(files) > 1} == {}


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest takes two of one name for the same module."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(name for name in names if names.count(name) > 1) == []


def test_every_page_of_the_documents_is_listed() -> None:
    """Each page is in the table of contents and in the site's navigation (`mkdocs build --strict` checks the links)."""
    contents, site = (ROOT / "docs" / "index.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f"({page})" not in contents and page != "index.md"] == []
    assert [page for page in pages if f": {page}\n" not in site] == []


def test_the_map_names_what_is_there() -> None:
    """Files and folders that docs/architecture.md gives."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?)`", text))
    bases = (ROOT, ROOT / "phantora", ROOT / "phantora" / "sim" / "engine")
    assert len(paths) > 40
    assert sorted(path for path in paths if not any((base / path).exists() for base in bases)) == []


PATH = re.compile(r"(?<![\w/.~-])(?:phantora|stub|tests|validation|viewers)(?:/[\w*-]+)+(?:\.\w+)?")
DOTTED = re.compile(r"(?<![\w/.\"'-])phantora(?:\.[a-z][a-z_]*)+")
OTHERS = ("phantora/phantora/", "phantora/cost/families/rope.py")
GROUPS = ("phantora.exports", "phantora.gpus", "phantora.shims")
"""The repository's address and a file that a recipe adds; entry points."""


def is_there(path: str) -> bool:
    return any(ROOT.glob(path)) or any(ROOT.glob(f"{path}.*"))


def stale_names(text: str) -> Iterator[str]:
    """Paths in `text` that do not exist, and modules of phantora."""
    for name in PATH.findall(text):
        if not name.startswith(OTHERS) and not re.search(r"[A-Z]{4}", name) and not is_there(name):  # ``x/NAME.py``
            yield name
    for name in DOTTED.findall(text):
        parts = name.split(".")
        depth = max(n for n in range(1, len(parts)) if (ROOT / "/".join(parts[:n])).is_dir())
        names = ROOT.joinpath(*parts[:depth], "__init__.py")
        known = name in GROUPS or not names.exists() or parts[depth] in names.read_text()
        if not known and not is_there("/".join(parts[: depth + 1])):
            yield name


def test_files_and_modules_that_texts_name_exist() -> None:
    """In code, comments and pages, but not in tests, which name what is not there, nor in the changelog."""
    assert list(stale_names("`phantora/run`, ``phantora.runs.process``")) == ["phantora/run", "phantora.runs.process"]
    pages = (ROOT / "CONTRIBUTING.md", ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    code = (path for path in sources(CODE) if path.relative_to(ROOT).parts[0] != "tests")
    stale = {str(path.relative_to(ROOT)): list(stale_names(path.read_text())) for path in (*code, *pages)}
    assert {path: names for path, names in stale.items() if names} == {}


def test_the_map_has_the_allowed_imports() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `phantora/(\w+)`.*? \| .*? \| .*? \| (.*?) \|$", text, re.MULTILINE)
    written = {package: set(re.findall(r"\w+", names)) for package, names in rows if package in ALLOWED}
    assert written == ALLOWED


def test_packages_name_their_process() -> None:
    """The box of the map's picture in which the code of a package runs."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `phantora/([\w/]+)`.*? \| (.*?) \|", text, re.MULTILINE)
    assert {name for name, _ in rows} >= ALLOWED.keys()
    wrong = []
    for name, process in rows:
        boxes = {"terminal", "agent", "fork server", "rank", "simulator"} & set(process.split(", "))
        line = f"Process: {process.replace(', ', ' and ') if boxes else 'every one'}."
        if line not in (ast.get_docstring(tree(ROOT / "phantora" / name / "__init__.py")) or ""):
            wrong.append(f"{name}: {line}")
    assert wrong == []


def test_docstrings_stand_alone() -> None:
    """An opening such as "The same" needs the docstring above, which an editor does not show."""
    opening = re.compile(r'^\s*r?"""(The same|And|Its|Of|So|Those)\b.*', re.MULTILINE)
    found = {str(path): opening.findall(path.read_text()) for path in (ROOT / "phantora").rglob("*.py")}
    assert {path: openings for path, openings in found.items() if openings} == {}


def test_records_have_few_positional_fields() -> None:
    """A call with more needs the class next to it to be read."""
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in (ROOT / "phantora").rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and _positional(node) > 5
    ]
    assert found == []


def _positional(record: ast.ClassDef) -> int:
    kinds = [ast.unparse(decorator) for decorator in record.decorator_list]
    if not any(kind.startswith("dataclass") and "kw_only=True" not in kind for kind in kinds):
        return 0
    fields = [node for node in record.body if isinstance(node, ast.AnnAssign)]
    names = [ast.unparse(field.annotation) for field in fields]
    fields = fields[: names.index("KW_ONLY")] if "KW_ONLY" in names else fields
    return sum(field.value is None or "init=False" not in ast.unparse(field.value) for field in fields)


def test_the_command_line_is_started_from_one_place() -> None:
    """`phantora.run_process.PHANTORA`; what runs a spec does so by `phantora/runs` or `phantora.run_process`."""
    pattern = re.compile(r'"-m",\s*"phantora"')
    found = [str(path.relative_to(ROOT)) for path in sources((".py",)) if pattern.search(path.read_text())]
    assert found == ["phantora/run_process.py"]
