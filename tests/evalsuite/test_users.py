"""What other users of a machine can do to a run and to its cache, and what they can't."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
from test_executors import needing
from test_guard import gone, written
from workshop import ONE, AtOnce, Workshop, wait_until

from evalsuite.plan import jobs_of
from evalsuite.recipe import Recipe, parse_recipe, read_recipe
from evalsuite.run import cache as caches
from evalsuite.run import guard
from evalsuite.run.cache import CACHE, MANIFEST, Cache, is_whole
from evalsuite.run.child import Assignment
from evalsuite.run.claims import Turn, turn_files
from evalsuite.run.clusters import Dask
from evalsuite.run.local import Processes
from evalsuite.run.locks import holder, lock_file
from evalsuite.run.progress import Progress
from evalsuite.run.runner import RunError, run_recipe

NOBODY = 65534
GROUP = 54321  # of both users, where they share one
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users can enter; pytest's own can't be."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@contextmanager
def user(number: int, umask: int) -> Iterator[None]:
    """Inside, this process has the rights of another user, who is in `GROUP` too."""
    caches._own_place.cache_clear()
    groups, mask = os.getgroups(), os.umask(umask)
    os.setgroups([GROUP])
    os.setegid(number)
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(mask)
        caches._own_place.cache_clear()


def recipe_of(seeds: str) -> Recipe:
    return parse_recipe(
        f"name: few\nworkloads: [digits-mlp]\nvariants: [gelu, gelu-swap]\nseeds: [{seeds}]\nsteps:"
        " [accuracy]\n"
    )


def ran(cache: Path, out: Path, seeds: str = "0") -> int:
    """How many jobs were run."""
    executor = AtOnce()
    record = run_recipe(recipe_of(seeds), out, Cache(cache), executor, Progress(), workers=2)
    assert record.finished
    return len(executor.ran)


def results_in(folder: Path) -> int:
    return sum(1 for _ in Cache(folder).homes())


# The rights of the cache's folder, the first user's umask, how many of the first's results the
# second takes, and whether what the second measures is kept in the cache.
SHARED = {
    "open to all": (0o777, 0o000, 4, True),
    "of a group": (0o2770, 0o002, 4, True),
    "of a group, each writes their own": (0o2770, 0o022, 4, True),
    "of a group, the first keeps to themselves": (0o2770, 0o077, 0, True),
    "readable": (0o755, 0o022, 4, False),
    "readable by a group": (0o2750, 0o027, 4, False),
    "private": (0o700, 0o077, 0, False),
}


@as_root
@pytest.mark.parametrize("how", SHARED)
def test_a_second_users_run_ends_whatever_the_rights_of_the_cache(
    how: str, open_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mode, umask, taken, kept = SHARED[how]
    cache, second = open_folder / "cache", open_folder / "second"
    cache.mkdir()
    os.chown(cache, 0, GROUP)
    cache.chmod(mode)
    with user(0, umask):
        assert ran(cache, open_folder / "first") == 4
        assert stat.S_IMODE(next(Cache(cache).homes()).stat().st_mode) & 0o777 == 0o777 & ~umask
    second.mkdir()
    os.chown(second, NOBODY, NOBODY)
    with user(NOBODY, umask):
        assert ran(cache, second / "out") == 4 - taken
        assert ran(cache, second / "more", "0, 1") == 8 - taken
        assert ran(cache, second / "more", "0, 1") == 0
    assert results_in(cache) == (8 if kept else 4)
    own = results_in(second / "more" / CACHE)
    assert own == (4 - taken if kept else 8 - taken)
    said = capsys.readouterr().err
    # once a run
    assert said.count("does not take what is measured") == (2 if own and not taken else bool(own))
    assert f"it is kept in {second / 'more' / CACHE}, for this run alone" in said or not own


@as_root
def test_who_may_not_write_the_cache_or_the_run_can_change_nothing_in_it_and_hold_no_lock(
    open_folder: Path,
) -> None:
    cache, out = open_folder / "cache", open_folder / "out"
    with user(0, 0o022):
        ran(cache, out)
        turn = Turn(
            Assignment(jobs_of(recipe_of("0"))[0], "key", cache, None, out / "log", cache=cache)
        )
        everything = [open_folder, *open_folder.rglob("*")]
        locks = [
            each for each in everything if each in turn_files(cache) or each.name.endswith("lock")
        ]
        # of the turns, of the run's folder, and of the run's place in the cache
        assert len(locks) == 2 + 2 + 1
        with closing(turn), user(NOBODY, 0o000):
            assert [
                each for each in everything if os.access(each, os.W_OK, effective_ids=True)
            ] == []
            for lock in locks:
                with pytest.raises(PermissionError):
                    os.open(lock, os.O_RDONLY)


@pytest.mark.parametrize(
    ("mode", "rights"), [(0o755, 0o600), (0o775, 0o660), (0o777, 0o666), (0o700, 0o600)]
)
def test_a_lock_is_of_those_who_may_write_its_folder(
    mode: int, rights: int, tmp_path: Path
) -> None:
    tmp_path.chmod(mode)
    (tmp_path / "old").touch(0o644)
    before = os.umask(0o077)
    try:
        for name in ("old", "new"):
            os.close(lock_file(tmp_path / name))
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == rights
    finally:
        os.umask(before)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        lock_file(tmp_path / "link")


def change(home: Path, name: str, content: str) -> None:
    manifest = json.loads((home / MANIFEST).read_text())
    (home / MANIFEST).write_text(json.dumps({**manifest, name: content}))


FORGED = {
    "another file": lambda home: (home / "deep" / "more").touch(),
    "a link instead of a file": lambda home: (
        (home / "deep" / "file").rename(home.parent / "kept"),
        (home / "deep" / "file").symlink_to(home.parent / "kept"),
    ),
    "a link to a folder": lambda home: (home / "linked").symlink_to("/etc"),
    "a pipe": lambda home: os.mkfifo(home / "pipe"),
    "a file elsewhere": lambda home: change(home, "../../../etc/hostname", "0" * 64),
    "a digest that is none": lambda home: change(home, "deep/file", "0" * 64),
    "a manifest that is a list": lambda home: (home / MANIFEST).write_text("[]"),
    "a manifest that is no text": lambda home: (home / MANIFEST).write_bytes(b"\xff"),
    "a manifest that is a pipe": lambda home: (
        (home / MANIFEST).unlink(),
        os.mkfifo(home / MANIFEST),
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_an_entry_of_more_or_other_things_than_its_manifest_says_is_no_result(
    how: str, tmp_path: Path
) -> None:
    cache, key = Cache(tmp_path), "ab" * 32
    scratch = cache.scratch()
    (scratch / "deep").mkdir()
    (scratch / "deep" / "file").write_text("content")
    (scratch / "link").symlink_to("/etc/hostname")  # as a stage may leave one: it is not kept
    home = cache.store(key, scratch)
    assert cache.find(key) == home
    assert not (home / "link").is_symlink()
    FORGED[how](home)
    assert not is_whole(home)
    assert (cache.find(key), home.exists()) == (None, False)


def timed(folder: Path) -> Assignment:
    job = next(job for job in jobs_of(parse_recipe(f"{ONE}steps: [export]\n")) if job.timed)
    return Assignment(job, "key", folder, None, folder / "log", cache=folder / "cache")


@pytest.mark.parametrize("which", [0, 1])
def test_a_job_that_waits_for_a_lock_says_who_holds_it(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guard, "_SILENCE", 0.0)
    job = timed(tmp_path)
    me = psutil.Process()
    ours, theirs = multiprocessing.Pipe()
    with closing(Turn(job)) as turn:
        file = turn_files(tmp_path / "cache")[which]
        assert holder(file) == ""
        other = os.open(file, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX)
        assert holder(file, [me.pid]) == ""
        waits = threading.Thread(target=guard._wait_for, args=(turn, theirs))
        waits.start()
        said = ours.recv()
        os.close(other)
        waits.join()
        assert not ours.poll()  # once
    assert said.startswith(
        f"process {me.pid} ({me.name()}, of {me.username()}) holds {tmp_path}/cache/turns/"
    )
    executor = Processes(1, [], jobs=1)
    for name in ("a/b/0/export", "a/b/1/export"):
        executor._say_wait(name, said)
    assert capsys.readouterr().err == f"evalsuite: a/b/0/export waits for its turn: {said}\n"


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_run_that_waits_for_a_lock_says_so_and_goes_on(which: int, workshop: Workshop) -> None:
    file = turn_files(workshop.cache)[which]
    file.parent.mkdir(parents=True)
    other = lock_file(file)
    fcntl.flock(other, fcntl.LOCK_EX)
    process = workshop.start(
        "run", workshop.recipe("  - accuracy\n", ONE), "--out", workshop.out, "--jobs", 2
    )
    line = process.stderr.readline()
    assert f"waits for its turn: process {os.getpid()} (" in line, line
    os.close(other)
    output, errors = process.communicate(timeout=150)
    assert (process.returncode, "2 jobs: 2 ok" in output) == (0, True), errors


# A program that starts the server which jobs are forked from.
STARTS = """\
import multiprocessing, os, sys, threading
from evalsuite.run.local import Processes
from evalsuite.signals import start

Processes(1, [], jobs=1)
os.environ["EVALSUITE_PRELOAD"] = sys.argv[1]
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(sys.argv[2].split(","))

def begin():
    process = context.Process(target=os.getpid)
    start(process)
    process.join()
    print(multiprocessing.forkserver._forkserver._forkserver_pid, flush=True)

if __name__ == "__main__":
    for _ in range(2):
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
"""


@pytest.mark.parametrize(
    "modules", ["evalsuite.forked,evalsuite.run.preload", "evalsuite.forked,sleeps"]
)
def test_a_server_that_still_imports_ends_with_its_program(modules: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    (tmp_path / "sleeps.py").write_text(
        f"import os, time\nopen({str(file)!r}, 'w').write(f'{{os.getpid()}} ')\ntime.sleep(300)\n"
    )
    (tmp_path / "starts.py").write_text(STARTS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(tmp_path / "starts.py"), "sleeps", modules]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}) as program:
        wait_until(lambda: written(file))
        server = int(file.read_text())
        assert not gone(server)
        program.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(server), 20)


def test_a_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(STARTS)
    command = [
        sys.executable,
        str(tmp_path / "starts.py"),
        "",
        "evalsuite.forked,evalsuite.run.preload",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = done.stdout.split()
    assert first == second


REFUSED = {
    "tcp://127.0.0.1:8786": (
        "is not encrypted: whoever reaches it runs code as you, on all its workers. Start it with "
        "certificates and name it tls://HOST:8786, or add --insecure"
    ),
    "127.0.0.1:8786": "is not encrypted",
    "ws://127.0.0.1:8786": "is not encrypted",
    "TLS://127.0.0.1:8786": "is not encrypted",
    "tls://127.0.0.1:8786": "it names none",
}


@needing("dask", "distributed")
@pytest.mark.parametrize("scheduler", REFUSED)
def test_a_scheduler_without_certificates_is_refused(scheduler: str, workshop: Workshop) -> None:
    recipe = workshop.recipe("  - accuracy\n")
    done = workshop.run(recipe, "--executor", "dask", "--scheduler", scheduler)
    assert (done.returncode, f"--scheduler {scheduler}" in done.stderr, workshop.out.exists()) == (
        2,
        True,
        False,
    )
    assert REFUSED[scheduler] in done.stderr
    if scheduler.startswith("tls"):
        done = workshop.run(recipe, "--executor", "dask", "--scheduler", scheduler, "--insecure")
        assert (done.returncode, "--insecure is for a --scheduler without TLS" in done.stderr) == (
            2,
            True,
        )
    else:
        read = read_recipe(recipe)
        assert (
            Dask(read, workshop.out, 1, scheduler, insecure=True)._security.require_encryption
            is False
        )


# Anybody of this machine, with no certificate, or with one of their own.
ATTACK = """\
import os, sys
from distributed import Client
from distributed.security import Security
tls = sys.argv[1].startswith("tls")
security = Security.temporary() if tls else Security(require_encryption=False)
try:
    with Client(sys.argv[1], security=security, timeout=3, set_as_default=False) as client:
        print("in", client.run_on_scheduler(os.getpid))
except Exception as error:
    print("out", type(error).__name__)
"""


def attacked(address: str) -> str:
    command = [sys.executable, "-c", ATTACK, address]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
@needing("dask", "cryptography")
def test_nobody_but_the_run_talks_to_its_dask_and_no_page_is_served(tmp_path: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=0, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0"
    ) as plain:
        assert attacked(plain.scheduler_address) == f"in {os.getpid()}\n"  # what TLS prevents
    executor = Dask(recipe_of("0"), tmp_path, 1)
    try:
        client = executor._connected()
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        assert list(client.run(os.geteuid).values()) == [os.geteuid()]
        listening = [
            connection.laddr
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]
            for connection in process.net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert {place.ip for place in listening} == {"127.0.0.1"}
        assert 8787 not in [place.port for place in listening]
        addresses = [address, *client.run(lambda dask_worker: dask_worker.address).values()]
        for scheme in ("tcp", "tls"):
            for place in addresses:
                assert attacked(f"{scheme}://{place.partition('://')[2]}").startswith("out "), (
                    scheme,
                    place,
                )
        for place in listening:
            page = [
                sys.executable,
                "-c",
                f"import urllib.request as u; u.urlopen('http://127.0.0.1:{place.port}/')",
            ]
            assert (
                subprocess.run(page, capture_output=True, check=False, timeout=60).returncode == 1
            )
    finally:
        executor.stop()


@pytest.mark.slow
@needing("dask", "cryptography")
def test_a_scheduler_from_outside_is_used_with_the_certificates_of_dasks_configuration(
    tmp_path: Path,
) -> None:
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    security = Security.temporary()
    (tmp_path / "certificate").write_text(security.tls_ca_file)
    (tmp_path / "key").write_text(security.tls_client_key)
    names = {"ca-file": "certificate", "client.cert": "certificate", "client.key": "key"}
    settings = {
        f"distributed.comm.tls.{name}": str(tmp_path / file) for name, file in names.items()
    }
    with LocalCluster(
        n_workers=1,
        processes=False,
        security=security,
        protocol="tls://",
        dashboard_address="127.0.0.1:0",
        worker_dashboard_address=None,
        host="127.0.0.1",
    ) as cluster:
        lacking = {**settings, "distributed.comm.tls.ca-file": str(tmp_path / "none")}
        refused = pytest.raises(
            ValueError, match=r"takes certificates of Dask's configuration \(.*No such file"
        )
        with dask.config.set(lacking), refused:
            Dask(recipe_of("0"), tmp_path / "out", 1, cluster.scheduler_address)
        with dask.config.set(settings):
            executor = Dask(recipe_of("0"), tmp_path / "out", 1, cluster.scheduler_address)
            try:
                assert list(executor._connected().run(os.geteuid).values()) == [os.geteuid()]
            finally:
                executor.stop()


@as_root
def test_another_user_cannot_keep_a_run_from_its_folder(open_folder: Path) -> None:
    (open_folder / "out").mkdir()
    (open_folder / "out" / ".lock").touch(0o644)  # as it was made before
    with user(0, 0o022):
        ran(open_folder / "cache", open_folder / "out")
        with user(NOBODY, 0o022), pytest.raises(RunError, match="cannot write to"):
            ran(open_folder / "cache", open_folder / "out")
