"""Worker processes: order, a bounded window, errors, and one thread each."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import pagefacets as pf
from pagefacets import parallel
from pagefacets.parallel import available_cores, ordered, standing_by


def loaded(crew):
    """The process of a crew of two that is not this one, once it has answered."""
    return crew._ready.result(timeout=60)


def square(shared, task):
    time.sleep(0.02)
    if task == shared:
        raise pf.InputError(f"task {task} is refused: take another")
    return task * task, torch.get_num_threads(), os.getpid()


def test_results_come_in_order_on_one_thread_each():
    torch.set_num_threads(2)
    try:
        results = list(ordered(square, range(400), workers=2, shared=None))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert [value for value, _, _ in results] == [i * i for i in range(400)]
    assert {threads for _, threads, _ in results} == {1}
    processes = [process for _, _, process in results]
    assert len(set(processes)) == 2, "this process is one of the two"
    assert 0.3 < processes[200:].count(os.getpid()) / 200 < 0.7, "and does its share once the other is there"


def test_an_error_in_a_worker_reaches_the_caller_as_itself():
    for refused in (7, 299):
        with pytest.raises(pf.InputError, match=f"task {refused} is refused"):
            list(ordered(square, range(300), workers=2, shared=refused))


def test_processes_that_stand_by_do_the_work_once_and_end_with_the_block(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "_memory_folder", lambda: str(tmp_path))
    with standing_by(2):
        other = loaded(parallel._waiting)
        assert {process for _, _, process in ordered(square, range(200), workers=2, shared=None)} == {
            os.getpid(),
            other,
        }
        assert other not in {process for _, _, process in ordered(square, range(200), workers=2, shared=None)}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wanted", [1, 3])
def test_processes_that_stand_by_in_vain_are_ended(tmp_path, monkeypatch, wanted):
    monkeypatch.setattr(parallel, "_memory_folder", lambda: str(tmp_path))
    with standing_by(2):
        results = ordered(square, range(50), workers=wanted, shared=None)
        assert [value for value, _, _ in results] == [i * i for i in range(50)]
        assert len(list(tmp_path.iterdir())) == (1 if wanted == 1 else 0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(pf.InputError, match="nothing to do"), standing_by(2):
        raise pf.InputError("nothing to do")
    assert list(tmp_path.iterdir()) == []


def test_cores_are_those_this_process_may_use():
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


def total(shared, task):
    numbers, arrays = task
    arrays[0] = arrays[0].copy() if arrays[0].flags.owndata else arrays[0]
    arrays[0][0] = -1.0
    return numbers, [float(array.sum()) for array in arrays], shared


def test_large_arrays_arrive_whole_and_writable_and_leave_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "_memory_folder", lambda: str(tmp_path))
    tasks = [
        (i, [np.full(100_001, i, np.float32), np.arange(3.0), np.full((400, 400), 0.25, np.float16)]) for i in range(9)
    ]
    tasks *= 40
    results = list(ordered(total, iter(tasks), workers=2, shared="s"))
    assert len(results) == 360
    for k, (number, sums, shared) in enumerate(results):
        i = k % 9
        assert (number, shared) == (i, "s")
        assert sums == [i * 100_000 - 1.0, 3.0, 40_000.0]
    assert list(tmp_path.iterdir()) == []
    early = ordered(total, iter(tasks), workers=2, shared="s")
    next(early)
    early.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("after", [0.05, 0.4, 1.2])
def test_ctrl_c_while_workers_load_is_told_once(tmp_path, after):
    script = tmp_path / "loading.py"
    script.write_text(
        "import time, numpy as np\n"
        "import pagefacets as pf\n"
        "from pagefacets.facets import many\n"
        "def pages():\n"
        "    while True:\n"
        "        print('started', flush=True)\n"
        "        yield np.random.default_rng(0).standard_normal((200, 64), dtype=np.float32)\n"
        "for facets in pf.compressor('random', budget=4).compress_many(pages(), workers=2):\n"
        "    pass\n"
    )
    child = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout.readline() == "started\n"
    time.sleep(after)
    os.killpg(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert errors.count("KeyboardInterrupt") == 1, errors
    assert errors.count("Traceback") == 1, errors


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="processes are looked up in /proc")
def test_workers_and_their_files_outlive_a_killed_parent_by_a_moment(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, time\n"
        "from pagefacets import parallel\n"
        f"parallel._memory_folder = lambda: {str(tmp_path)!r}\n"
        "def work(shared, task):\n"
        "    time.sleep(0.05)\n"
        "    return os.getpid()\n"
        "for process in parallel.ordered(work, iter(int, 1), workers=3, shared=None):\n"
        "    print(process, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    workers = set()
    while len(workers) < 2:
        workers |= {int(child.stdout.readline())} - {child.pid}
    assert list(tmp_path.glob("pagefacets-*"))
    child.kill()
    child.communicate(timeout=60)  # ends when no process holds the pipe any more
    deadline = time.monotonic() + 30
    while any(is_running(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(tmp_path.glob("pagefacets-*")) == []


def is_running(process):
    """Whether it is there, and more than an entry that nobody has asked for its exit status."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
