"""Tests of PyTorch and of frameworks under `phantora trace`: runs them, prints a table. No copy is kept here.

    python -m tests.upstream.run --folder /tmp/upstream --suite cuda --suite "c10d operations"
    python -m tests.upstream.run --folder /tmp/upstream --sources ~/pytorch --suite FSDP2 --only overlap
    python -m tests.upstream.run --folder /tmp/titan --project torchtitan --sources ~/torchtitan --limit 600

`--sources` is a checkout of the project, best of the release that is installed. Without it Debian's source package of
PyTorch is fetched with apt-get. Needs pytest and expecttest. What ran before in the folder is not run again: an outcome
is taken from `FOLDER/outcomes/FILE.jsonl` until that file is removed.

A test counts as hung when it takes longer than `--limit` seconds of real time; it is ended, and the run goes on behind
it. What did not pass is run again

- with `--again` in processes of its own, since a failed test leaves memory and settings behind;
- with `--true` under stubs whose limits are so high that every operator is computed: a test that passes then failed
  because the values of large kernels are zeros (docs/values.md).

`known.toml` says why others do not pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from phantora.run_process import PHANTORA

try:
    import tomllib
except ImportError:
    import tomli as tomllib

from commands import flavors, run_flavor
from suites import PROJECTS, RENAMED, SUITES, Suite

from phantora.launch.shared_forkserver import VARIABLE, WarmServer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TRUE_LIMITS = "PH_SMALL_ELEMENTS=16777216 PH_TRUE_COPY_BYTES=268435456 PH_CARRIED_BYTES=1048576"
STARTING = 600.0  # seconds until the first test begins, beyond the limit for a test
COLUMNS = ("run", "passed", "zeros", "release", "refused", "otherwise", "crashed", "hung", "skipped")
BAD = ("failed", "crashed", "hung")
REFUSED = re.compile(r"(PhantoraError|phantora|nccl\w+) ?: .*(is|are) not simulated")  # by name, with a remedy


def fetch(folder: Path) -> Path:
    """PyTorch's `test/` of Debian's source package. Raises SystemExit with apt-get's words if it cannot be had."""
    sources = folder / "pytorch"
    if (sources / "test").exists():
        return sources
    apt = folder / "apt"
    (apt / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb-src [signed-by={key}] http://deb.debian.org/debian trixie main\n")
    options = (
        f"Dir::Etc::sourcelist={apt}/sources.list",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={apt}/lists",
        f"Dir::Cache={apt}",
    )
    command = ["apt-get", "-q", *(f"-o{option}" for option in options)]
    for words in (["update"], ["source", "--download-only", "--tar-only", "pytorch"]):
        done = subprocess.run([*command, *words], cwd=apt, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"apt-get {words[0]} fails: {done.stderr.strip()}; give a checkout by --sources")
    archive = next(apt.glob("pytorch_*.orig.tar.*"))
    sources.mkdir()
    subprocess.run(["tar", "xf", archive, "-C", sources, "--strip-components=1", "--wildcards", "*/test/*"], check=True)
    return sources


def adapted(sources: Path, folder: Path) -> Path:
    """A copy of PyTorch's tests in which renamed helpers have the names of the installed torch."""
    tests = folder / "test"
    if not tests.exists():
        shutil.copytree(sources / "test", tests)
        for path in tests.rglob("*.py"):
            text = path.read_text(errors="surrogateescape")
            new = text
            for old, name in RENAMED.items():
                new = new.replace(old, name)
            if new != text:
                path.write_text(new, errors="surrogateescape")
    return tests


def outcomes(path: Path) -> dict[str, tuple[str, str]]:
    """The last outcome of each test of a file, and its text; `began` for one that runs."""
    found: dict[str, tuple[str, str]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        found[row["test"]] = (row["outcome"], row["text"])
    return found


def of_ranks(path: Path) -> list[Path]:
    """Files of ranks that run pytest themselves."""
    return sorted(path.parent.glob(f"{path.stem}.rank*.jsonl"))


def merge(path: Path) -> bool:
    """Adds what ranks say to the outcomes of the file: the worst of them. A test that only some have begun, behind one
    where the others wait, has not been run: is there one?"""
    left = False
    ranks = [outcomes(file) for file in of_ranks(path)]
    order = ("failed", "began", "skipped", "passed")
    with path.open("a") as rows:
        for test in dict.fromkeys(test for rank in ranks for test in rank):
            said = [rank[test] for rank in ranks if test in rank]
            outcome = min((outcome for outcome, _ in said), key=order.index)
            if outcome == "failed" or len(said) == len(ranks):
                text = "\n".join(dict.fromkeys(text for kind, text in said if kind == outcome and text))
                rows.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")
            left |= len(said) < len(ranks)
    for file in of_ranks(path):
        file.unlink()
    return left


def forget(path: Path, tests: set[str]) -> None:
    """Leaves the outcomes of these tests out of the file: they are run again."""
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["test"] not in tests))


def stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def traced(gpus: int, out: Path, arguments: argparse.Namespace) -> list[str]:
    """`phantora trace` and its options."""
    return [
        *PHANTORA,
        "trace",
        "--cluster",
        f"1x{gpus}x{arguments.gpu}",
        "--force",
        "--hang-timeout",
        str(arguments.limit),
        "--no-recording",
        "--no-summary",
        "-o",
        str(out.with_suffix(".arrow")),
    ]


def start(command: list[str], folder: Path, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as words:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=words,
            stderr=words,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )


def run_list(name: str, sources: Path, out: Path, arguments: argparse.Namespace, environment: dict[str, str]) -> None:
    """Runs what of a list of TorchTitan's flavors has no outcome."""

    def run(command: list[str], log: Path) -> int | None:
        process = start(command, sources, environment, log)
        try:
            return process.wait(arguments.limit)
        except subprocess.TimeoutExpired:
            stop(process)
            return None

    out.parent.mkdir(parents=True, exist_ok=True)
    before = outcomes(out)
    for flavor in flavors(sources, name, out.parent / "written"):
        if flavor.name not in before and (arguments.only is None or re.search(arguments.only, flavor.name)):
            run_flavor(flavor, out, lambda gpus: traced(gpus, out, arguments), run)


def run_file(
    root: Path, file: str, suite: Suite, out: Path, arguments: argparse.Namespace, environment: dict[str, str]
) -> None:
    """Runs what of a file below `root` has no outcome, as often as it crashes or hangs."""
    path = root / file
    out.parent.mkdir(parents=True, exist_ok=True)
    log = out.with_suffix(".log")
    command = [
        *traced(suite.gpus, out, arguments),
        *(() if suite.ranks else ("--", sys.executable)),
        "-m",
        "pytest",
        "-p",
        "outcomes",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        str(path),
    ]
    if suite.project == "pytorch":
        command += ["--noconftest", "--rootdir", str(path.parent)]
    if suite.marked:
        command += ["-m", suite.marked]
    if arguments.only:
        command += ["-k", arguments.only]
    environment = {
        **environment,
        "PEERS_OUTCOMES": str(out),
        "PEERS_FORK": ",".join(suite.preload) if arguments.fork else "",
        "PEERS_RANKS": "1" if suite.ranks else "",
        "PEERS_TOGETHER": "1" if suite.together else "",
    }
    begun = time.monotonic()
    while time.monotonic() - begun < arguments.file_limit:
        before = outcomes(out)
        said = log.stat().st_size if log.exists() else 0
        process = start(command, path.parent if suite.project == "pytorch" else root, environment, log)
        started = time.time()
        hung = False
        while process.poll() is None:
            time.sleep(0.5)
            moved = max((file.stat().st_mtime for file in (out, *of_ranks(out)) if file.exists()), default=0.0)
            if moved < started:  # nothing has begun: the stubs are built, torch is imported
                moved = started + STARTING
            hung = time.time() - moved > arguments.limit
            if hung or time.monotonic() - begun > arguments.file_limit:
                stop(process)
        left = merge(out)
        after = outcomes(out)
        open_tests = [test for test, (outcome, _) in after.items() if outcome == "began"]
        tail = log.read_bytes()[said:].decode(errors="replace")[-6000:]
        if time.monotonic() - begun > arguments.file_limit and not hung:
            return forget(out, set(open_tests))  # not its fault: next time
        with out.open("a") as rows:
            for test in open_tests:
                rows.write(json.dumps({"test": test, "outcome": "hung" if hung else "crashed", "text": tail}) + "\n")
        if after.keys() == before.keys() or (suite.together and not open_tests and not left):
            return


def reason(text: str) -> str:
    """The line of a failure that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(E +)?[\w.]*(Error|Exception|Skip|assert)\b.*", line)]
    return (errors or lines or [""])[-1].removeprefix("E").strip()[:200]


def kind_of(
    test: str, outcome: str, text: str, true: dict[str, tuple[str, str]], known: dict[str, dict[str, str]]
) -> str:
    """The column that a test counts in."""
    if outcome in BAD and test in known["release"]:
        return "release"
    if outcome == "failed" and REFUSED.search(text):
        return "refused"
    if outcome == "failed":
        return "zeros" if test in known["zeros"] or true.get(test, ("",))[0] == "passed" else "otherwise"
    return outcome


def table(suites: list[Suite], folder: Path, why: bool) -> None:
    known_reasons = tomllib.loads((HERE / "known.toml").read_text())
    total = dict.fromkeys(COLUMNS, 0)
    print("| file | " + " | ".join(COLUMNS) + " |")
    print("| --- |" + " ---: |" * len(COLUMNS))
    for suite in suites:
        for file in suite.files:
            name = Path(file).stem
            found = outcomes(folder / "outcomes" / f"{name}.jsonl")
            true = outcomes(folder / "true" / f"{name}.jsonl")
            counts = dict.fromkeys(COLUMNS, 0)
            for test, (outcome, text) in sorted(found.items()):
                if outcome == "began":
                    continue
                known = {kind: reasons.get(name, {}) for kind, reasons in known_reasons.items()}
                kind = kind_of(test, outcome, text, true, known)
                counts[kind] += 1
                counts["run"] += outcome != "skipped"
                if why and kind not in ("passed", "skipped"):
                    words = next((reasons[test] for reasons in known.values() if test in reasons), reason(text))
                    print(f"{kind:10} {name}::{test}: {words}", file=sys.stderr)
            for column in COLUMNS:
                total[column] += counts[column]
            if found:
                print(f"| `{file}` | " + " | ".join(str(counts[column]) for column in COLUMNS) + " |")
    print("| all | " + " | ".join(str(total[column]) for column in COLUMNS) + " |")


def place(arguments: argparse.Namespace, folder: Path) -> Path:
    """The folder that the suites' files lie below. Raises SystemExit when no sources are there."""
    if arguments.project == "pytorch":
        return adapted(arguments.sources or fetch(folder), folder)
    below = PROJECTS[arguments.project]
    if not arguments.sources or not (arguments.sources / below).is_dir():
        raise SystemExit(f"give a checkout of {arguments.project} by --sources: one with {below}")
    return Path(arguments.sources).resolve()


def run_suites(
    suites: list[Suite], tests: Path, folder: Path, arguments: argparse.Namespace, variables: dict[str, str]
) -> None:
    """Runs what of the suites has no outcome, or failed, as the arguments say."""
    paths = [str(HERE), str(ROOT), str(tests), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    for suite in suites:
        for file in suite.files:
            out = folder / "outcomes" / f"{Path(file).stem}.jsonl"
            failed = [test for test, (outcome, _) in outcomes(out).items() if outcome in BAD]
            if arguments.again and failed:
                forget(out, set(failed))
            if arguments.project == "torchtitan":
                run_list(file, tests, out, arguments, environment)
                continue
            if not arguments.true:
                run_file(tests, file, suite, out, arguments, environment)
                continue
            wanted = folder / "wanted.txt"
            wanted.write_text("\n".join(failed))
            settings = {"PEERS_WANTED": str(wanted), "PHANTORA_DEFINES": TRUE_LIMITS}
            if failed:
                true = folder / "true" / out.name
                run_file(tests, file, suite, true, arguments, {**environment, **settings})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="fetched tests, outcomes and logs")
    parser.add_argument("--project", choices=PROJECTS, default="pytorch", help="whose tests; default: pytorch")
    parser.add_argument("--sources", type=Path, help="a checkout of the project")
    parser.add_argument("--suite", action="append", choices=[suite.name for suite in SUITES], help="default: all")
    parser.add_argument("--only", help="pytest's -k; a pattern in flavors' names")
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--fork", action="store_true", help="fork processes from one that has imported torch")
    parser.add_argument("--limit", type=float, default=120, help="seconds of real time for a test")
    parser.add_argument("--file-limit", type=float, default=3600, help="and for a file, each time")
    parser.add_argument("--again", action="store_true", help="run what did not pass again, in new processes")
    parser.add_argument("--true", action="store_true", help="run failed tests again with every operator computed")
    parser.add_argument("--why", action="store_true", help="a line for each test that did not pass, on stderr")
    parser.add_argument("--table", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    suites = [suite for suite in SUITES if suite.project == arguments.project]
    suites = [suite for suite in suites if not arguments.suite or suite.name in arguments.suite]
    if not arguments.table:
        with closing(WarmServer()) as server:  # ranks of all runs come from one, which has imported torch
            run_suites(suites, place(arguments, folder), folder, arguments, {VARIABLE: server.path})
    table(suites, folder, arguments.why)


if __name__ == "__main__":
    main()
