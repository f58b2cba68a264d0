"""Tests of imports between packages and between the rooms inside them, including late imports."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.floors import (
    BARE,
    COMPOSERS,
    DOORS,
    EXTRAS,
    FLOORS,
    FORBIDDEN,
    LATE,
    LIBRARIES,
    MOST_MODULES,
    OURS,
    SQL,
    TENSORS,
    UNTIL_FLOWS,
    WEB,
)
from tests.sources import file_of, imports_in

ROOT = Path(__file__).resolve().parent.parent


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the full name and line of every import in a file: for `from a import b`, both `a` and `a.b`."""
    yield from ((name, each.line) for each in imports_in(path) for name in each.names)


def packages_of(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the top-level name and line of every import in a file, once per line."""
    yield from sorted({(name.partition(".")[0], line) for name, line in imports_of(path)})


def violations(package: str, forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in packages_of(path)
        if name in forbidden - EXTRAS.get(str(path.relative_to(ROOT)), set())
    ]


def room_of(module: str, package: str) -> str | None:
    """Return the folder or file at a package's root that contains a full name, or None if it is not in the package."""
    room = module.removeprefix(f"{package}.").partition(".")[0]
    return room if module.startswith(f"{package}.") else None


def upward_arrows(package: str, floors: list[list[str]], root: Path = ROOT) -> list[str]:
    """Return every import inside a package that does not lead to a lower floor, and every room without a floor."""
    floor_of = {room: number for number, rooms in enumerate(floors) for room in rooms}
    found: dict[str, None] = {}
    folder = root.joinpath(*package.split("."))
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(root).as_posix() in UNTIL_FLOWS:
            continue
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        for name, line in imports_of(path):
            other = room_of(name, package)
            if other is None or other == own or not is_room(folder, other):
                continue
            here, there = (floor_of.get(room, floor_of.get("*")) for room in (own, other))
            if here is None or there is None or there >= here:
                found[f"{path.relative_to(root)}:{line} imports {package}.{other}, which is not below {own}"] = None
    return list(found)


def is_room(package: Path, name: str) -> bool:
    return (package / name).is_dir() or (package / f"{name}.py").is_file()


def module_graph(root: Path) -> dict[str, set[str]]:
    """Return the imports between our modules, by module."""
    files = {path for package in OURS for path in (root / package).rglob("*.py")}
    names = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    return {
        module: {name for name, _ in imports_of(path) if name in names and not names[name].match("__init__.py")}
        for module, path in names.items()
    }


def is_borrowed(node: ast.Import | ast.ImportFrom) -> bool:
    """Return whether an import takes something from a test module or a conftest, including relative imports."""
    names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
    return any(re.fullmatch(r"test_\w+|conftest", part) for name in names for part in name.split("."))


@cache
def libraries_of(module: str) -> frozenset[str]:
    """Return the top-level names of the libraries that a module loads on import, and its imports at the top."""
    seen, found, waiting = set[str](), set[str](), [module]
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if top not in OURS or top == "benchmarks":
            found.add(top)
        elif name not in seen and (path := file_of(name)) is not None:
            seen.add(name)
            waiting += [each for top in imports_in(path) if top.is_at_top for each in top.names]
    return frozenset(found)


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_imports_only_along_the_arrows(package: str) -> None:
    assert violations(package, FORBIDDEN[package]) == []


@pytest.mark.parametrize("package", sorted(FLOORS))
def test_a_room_imports_only_rooms_on_lower_floors(package: str) -> None:
    assert upward_arrows(package, FLOORS[package]) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        TopologicalSorter(module_graph(ROOT)).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_no_level_of_a_package_is_a_hall_without_walls() -> None:
    # Except migrations: they are one chain, read from its end, that only grows.
    levels = {path.parent for package in OURS - {"migrations"} for path in (ROOT / package).rglob("*.py")}
    sizes = {str(level.relative_to(ROOT)): len(list(level.glob("*.py"))) for level in levels}
    assert {level: size for level, size in sizes.items() if size > MOST_MODULES} == {}


def test_every_folder_of_a_package_says_what_it_is_for() -> None:
    levels = {path.parent for package in FLOORS for path in ROOT.joinpath(*package.split(".")).glob("*/**/*.py")}
    sources = {level: (level / "__init__.py").read_text(encoding="utf-8") for level in sorted(levels)}
    silent = [level for level, source in sources.items() if not ast.get_docstring(ast.parse(source))]
    assert [str(level.relative_to(ROOT)) for level in silent] == []


@pytest.mark.parametrize("folder", sorted(DOORS))
def test_a_folder_with_a_door_is_entered_through_it(folder: str) -> None:
    path = ROOT.joinpath(*folder.split("."))
    past = [
        f"{file.relative_to(ROOT)}:{line} imports {name}"
        for package in sorted(DOORS[folder])
        for file in sorted((ROOT / package).rglob("*.py"))
        for name, line in imports_of(file)
        if name.startswith(folder + ".") and is_room(path, name.removeprefix(folder + ".").partition(".")[0])
    ]
    assert past == []


@pytest.mark.parametrize("package", ["engine", "kernels"])
def test_engine_and_kernels_need_no_more_than_a_gpu_machine_has(package: str) -> None:
    allowed = BARE | {"engine", "kernels", "protocol"} | set(sys.stdlib_module_names)
    strangers = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in packages_of(path)
        if name not in allowed | EXTRAS.get(str(path.relative_to(ROOT)), set())
    ]
    assert strangers == []


def test_the_protocol_needs_the_standard_library_alone() -> None:
    allowed = {"protocol"} | set(sys.stdlib_module_names)
    files = sorted((ROOT / "protocol").rglob("*.py"))
    assert [(path.name, name) for path in files for name, _ in packages_of(path) if name not in allowed] == []


@pytest.mark.parametrize("folder", sorted(LIBRARIES))
def test_a_library_within_a_feature_stands_alone(folder: str) -> None:
    strangers = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in imports_of(path)
        if name.partition(".")[0] in OURS | WEB | SQL and not name.startswith(tuple(LIBRARIES[folder]))
    ]
    assert strangers == []


@pytest.mark.parametrize("package", sorted(COMPOSERS))
def test_only_what_puts_features_together_knows_them(package: str) -> None:
    knowing = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.relative_to(ROOT / package).parts[0].removesuffix(".py") not in COMPOSERS[package]
        for name, line in imports_of(path)
        if name.partition(".")[0] == "features"
    ]
    assert knowing == []


def test_commands_and_endpoints_of_features_have_only_what_their_surface_has() -> None:
    """Commands run without a server installed, and pages and endpoints in no worker."""
    banned = {"commands": WEB, "http": set[str](), "pages": set[str](), "schemas": set[str]()}
    past = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / "features").rglob("*.py"))
        for name, line in packages_of(path)
        if name in banned.get(surface_of(path), WEB)
    ]
    assert past == []


def surface_of(path: Path) -> str:
    """Return the surface of its feature that a file is for: `http`, `schemas`, `pages`, `commands`, or another name."""
    _, *rest = path.relative_to(ROOT / "features").parts
    return rest[0].removesuffix(".py") if rest else ""


def test_a_command_imports_late_only_what_is_slow_or_not_installed_everywhere() -> None:
    """Other imports must be at the top of a module: `tokenmill --help` loads no module of a command."""
    features = ROOT / "features"
    files = {*(ROOT / "cli").rglob("*.py"), *features.glob("*/commands.py"), *features.glob("*/commands/**/*.py")}
    files.remove(ROOT / "cli" / "main.py")  # handles Ctrl-C before it loads anything
    quick = [
        f"{path.relative_to(ROOT)}:{late.line} imports {late.names[-1]}"
        for path in sorted(files)
        for late in imports_in(path)
        if late.is_late and not any(LATE & libraries_of(name) for name in late.names)
    ]
    assert quick == []


def test_scheduling_knows_no_tensors() -> None:
    folder = ROOT / "engine" / "scheduling"
    assert [(path.name, name) for path in folder.glob("*.py") for name, _ in packages_of(path) if name in TENSORS] == []


def test_no_test_module_imports_another_or_a_conftest() -> None:
    borrowed = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom)) and is_borrowed(node)
    ]
    assert borrowed == [], "what tests share lies beside them in modules of its own: builders.py"


def test_the_check_sees_an_import_inside_a_function(tmp_path: Path) -> None:
    source = tmp_path / "late.py"
    source.write_text("def f():\n    from celery.app import task\n")
    assert list(packages_of(source)) == [("celery", 2)]


def test_the_check_sees_an_arrow_that_points_up(tmp_path: Path) -> None:
    (tmp_path / "house" / "cellar").mkdir(parents=True)
    (tmp_path / "house" / "roof.py").write_text("")
    (tmp_path / "house" / "cellar" / "wine.py").write_text("if TYPE_CHECKING:\n    from house.roof import Tile\n")
    arrows = ["house/cellar/wine.py:2 imports house.roof, which is not below cellar"]
    assert upward_arrows("house", [["cellar"], ["roof"]], tmp_path) == arrows
