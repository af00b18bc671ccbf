"""Another user of the machine, for real: a process of user 65534 runs no code, stops no run, and
poisons no cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from test_executors import end, needing
from test_users import ATTACK, GROUP, NOBODY, as_root, open_folder, ran, results_in, user
from workshop import ONE, Workshop, lines, wait_until

from evalsuite.run.cache import MANIFEST, Cache, is_whole

__all__ = ["open_folder"]


pytestmark = as_root
# The other user may be kept from Python's own folder: what the programs need is loaded before.
BECOME = f"""\
import encodings.idna, fcntl, json, os, pickle, select, shutil, socket, struct, sys
if sys.argv.pop(1) == "distributed":
    import distributed
    distributed.security.Security.temporary()
code, groups = sys.argv.pop(1), sys.argv.pop(1)
os.setgroups(json.loads(groups))
os.setgid({NOBODY})
os.setuid({NOBODY})
exec(code)
"""


def other(code: str, *words: object, groups: tuple[int, ...] = ()) -> subprocess.Popen[str]:
    """A program of the other user."""
    pipe, library = subprocess.PIPE, "distributed" if "distributed" in code else ""
    command = [sys.executable, "-c", BECOME, library, code, json.dumps(groups), *map(str, words)]
    return subprocess.Popen(command, cwd="/", text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def said(code: str, *words: object, groups: tuple[int, ...] = ()) -> list[str]:
    """What such a program prints, once it has ended well."""
    process = other(code, *words, groups=groups)
    output, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    return output.splitlines()


@pytest.fixture
def shop(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    """A workshop that the other user can enter, with a folder for temporary files that all may
    write.
    """
    temporary = open_folder / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.chdir(open_folder)
    yield Workshop(open_folder)
    tempfile.tempdir = None


# To each port a pickle that would run code, as it is and in a frame; and what lies open of the
# run's processes.
PICKLES = """\
import os, pickle, socket, struct, sys
folder, pids, ports = sys.argv[1], *(word.split(",") for word in sys.argv[2:4])
class Payload:
    def __reduce__(self):
        return os.system, (f"touch {folder}/tmp/code-has-run",)
pickled = pickle.dumps(Payload())
frame = struct.pack("<QQ", 1, len(pickled)) + pickled
for port in ports:
    for content in (pickled, struct.pack("<Q", len(frame)) + frame):
        with socket.create_connection(("127.0.0.1", int(port)), 5) as connection:
            connection.settimeout(2)
            try:
                connection.sendall(content)
                connection.recv(1000)
            except OSError:
                pass
for pid in pids:
    for name in ("environ", "mem", "maps", "fd", "cwd"):
        try:
            path = f"/proc/{pid}/{name}"
            os.listdir(path) if name == "fd" else open(path, "rb").read(1)
            print("read", pid, name)
        except OSError:
            pass
    try:
        command = open(f"/proc/{pid}/cmdline").read()  # which is for all
    except OSError:  # the process has ended
        continue
    if "PRIVATE" in command or "BEGIN" in command:
        print("key in the words of", pid)
for top in (folder, "/dev/shm"):
    for place, _, names in os.walk(top):
        for name in names:
            path = os.path.join(place, name)
            try:
                if os.path.isfile(path) and b"PRIVATE KEY" in open(path, "rb").read():
                    print("key in", path)
            except OSError:
                pass
"""


@pytest.mark.slow
@needing("dask", "cryptography")
def test_another_user_runs_no_code_by_a_runs_dask_and_reads_no_key(shop: Workshop) -> None:
    recipe = shop.recipe("  - {use: slow, seconds: 600, time_limit: 900}\n", ONE)
    process = shop.start("run", recipe, "--out", shop.out, "--executor", "dask", "--jobs", "1")
    try:
        wait_until(lambda: lines(shop.out / "journal.jsonl") >= 1, 200)
        processes = [
            psutil.Process(process.pid),
            *psutil.Process(process.pid).children(recursive=True),
        ]
        ports = set()
        for member in processes:
            with suppress(psutil.NoSuchProcess):  # a job's process may have ended meanwhile
                ports |= {
                    connection.laddr.port
                    for connection in member.net_connections()
                    if connection.status == psutil.CONN_LISTEN
                }
        assert len(ports) >= 2  # of the scheduler, and of a worker
        pids = ",".join(str(each.pid) for each in processes)
        open_key = shop.folder / "tmp" / "open"
        open_key.write_text("PRIVATE KEY")
        open_key.chmod(0o644)
        assert said(PICKLES, shop.folder, pids, ",".join(map(str, ports))) == [f"key in {open_key}"]
        from distributed import LocalCluster

        with LocalCluster(
            n_workers=0, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0"
        ) as plain:
            # what TLS prevents
            assert said(ATTACK, plain.scheduler_address) == [f"in {os.getpid()}"]
        for port in ports:
            for scheme in ("tcp", "tls"):
                (answer,) = said(ATTACK, f"{scheme}://127.0.0.1:{port}")
                assert answer.startswith("out "), (scheme, port, answer)
        assert not (shop.folder / "tmp" / "code-has-run").exists()
        assert process.poll() is None  # the run goes on
        assert lines(shop.out / "journal.jsonl") == 1
    finally:
        end(process)


# Hold whatever can be opened, as soon as it is there, and put files where folders are open.
HOLD = """\
import fcntl, os, sys
held = {}
for name in ("evalsuite", "evalsuite-turns", "evalsuite.lock", "evalsuite-0"):
    for folder in ("/dev/shm", sys.argv[1] + "/tmp"):
        try:
            path = f"{folder}/{name}"
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            held[path] = descriptor
            mine = held
        except OSError:
            pass
created = list(held)
print("ready", flush=True)
import select
while not select.select([sys.stdin], [], [], 0.02)[0]:
    for top in sys.argv[1:]:
        for place, folders, names in os.walk(top):
            for path in (os.path.join(place, name) for name in names + folders):
                if path in held:
                    continue
                try:
                    held[path] = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                    fcntl.flock(held[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    held.pop(path, None)
print(len(held))
for path in created:
    os.unlink(path)
"""


@pytest.mark.slow
def test_another_user_who_holds_all_locks_that_he_can_stops_no_run(shop: Workshop) -> None:
    recipe = shop.recipe("  - accuracy\n  - export\n", ONE)
    attacker = other(HOLD, shop.folder, "/dev/shm")
    assert attacker.stdout is not None
    assert attacker.stdout.readline() == "ready\n"
    process = shop.start("run", recipe, "--out", shop.out, "--jobs", 2)
    output, errors = process.communicate(timeout=250)
    held, _ = attacker.communicate("\n", timeout=60)
    assert int(held) > 8  # beside his own he has got at files of the run, which are no locks
    assert (process.returncode, "3 jobs: 3 ok" in output, "waits for" in errors) == (
        0,
        True,
        False,
    ), errors


# Every way to change what lies below a folder; what succeeded is printed.
POISON = """\
import os, sys
top = sys.argv[1]
def attempt(what, path, action):
    try:
        action()
        print(what, path)
    except OSError:
        pass
for place, folders, names in list(os.walk(top)):
    for name in names:
        path = os.path.join(place, name)
        attempt("wrote", path, lambda: open(path, "r+b").write(b"poison"))
        attempt("chmod", path, lambda: os.chmod(path, 0o666))
        attempt("replaced", path, lambda: os.replace(path, path + "x"))
        attempt("removed", path, lambda: os.unlink(path))
    attempt("made", place, lambda: open(os.path.join(place, "new"), "x"))
    attempt("linked", place, lambda: os.symlink("/etc/passwd", os.path.join(place, "link")))
    for name in folders:
        attempt("renamed", place, lambda: os.rename(f"{place}/{name}", f"{place}/{name}x"))
"""


def test_another_user_changes_nothing_in_a_cache_that_he_may_not_write(open_folder: Path) -> None:
    cache = open_folder / "cache"
    with user(0, 0o022):
        assert ran(cache, open_folder / "out") == 4
    assert said(POISON, cache) == []
    assert said(POISON, open_folder / "out") == []
    with user(0, 0o022):
        assert ran(cache, open_folder / "again") == 0


# What a member of the group does to the first entry: he writes into it, or puts one of his own in
# its place.
FORGE = """\
import json, os, shutil, sys
how, home = sys.argv[1:]
files = sorted(entry.name for entry in os.scandir(home) if entry.is_file())
names = [name for name in files if name != "manifest.json"]
if how == "writes":
    with open(os.path.join(home, names[0]), "r+b") as file:
        file.write(b"[")
else:
    shutil.copytree(home, home + ".new")
    shutil.rmtree(home)
    os.rename(home + ".new", home)
    if how == "replaces, and adds":
        open(os.path.join(home, "more"), "x")
    elif how == "replaces, and links":
        os.replace(os.path.join(home, names[0]), os.path.join(home, "..", "kept"))
        os.symlink("../kept", os.path.join(home, names[0]))
    else:
        with open(os.path.join(home, names[0]), "ab") as file:
            file.write(b" ")
"""


@pytest.mark.parametrize("how", ["writes", "replaces", "replaces, and adds", "replaces, and links"])
def test_what_a_member_of_the_group_wrote_wrongly_is_not_believed(
    how: str, open_folder: Path
) -> None:
    cache = open_folder / "cache"
    cache.mkdir()
    os.chown(cache, 0, GROUP)
    cache.chmod(0o2770)
    with user(0, 0o002):
        assert ran(cache, open_folder / "out") == 4
        home = next(Cache(cache).homes())
        whole = json.loads((home / MANIFEST).read_text())
    said(FORGE, how, home, groups=(GROUP,))
    assert json.loads((home / MANIFEST).read_text()) == whole
    with user(0, 0o002):
        assert not is_whole(home)
        assert ran(cache, open_folder / "again") == 1  # the one that was forged
        assert is_whole(home)
        assert results_in(cache) == 4
    shutil.rmtree(cache)
