"""Worker processes: order, a bounded window, errors, and one thread each."""

import os

import pytest
import torch

import pagefacets as pf
from pagefacets.parallel import available_cores, ordered


def square(shared, task):
    if task == shared:
        raise pf.InputError(f"task {task} is refused: take another")
    return task * task, torch.get_num_threads(), os.getpid()


def test_results_come_in_order_from_other_processes_on_one_thread_each():
    results = list(ordered(square, range(50), workers=2, shared=None))
    assert [value for value, _, _ in results] == [i * i for i in range(50)]
    assert {threads for _, threads, _ in results} == {1}
    assert os.getpid() not in {process for _, _, process in results}


def test_an_error_in_a_worker_reaches_the_caller_as_itself():
    results = ordered(square, range(50), workers=2, shared=7)
    with pytest.raises(pf.InputError, match="task 7 is refused"):
        list(results)


def test_cores_are_those_this_process_may_use():
    assert 1 <= available_cores() <= (os.cpu_count() or 1)
