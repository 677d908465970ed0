"""Batches that a thread reads ahead for a GPU. On a machine without a GPU, only the pinning is missing."""

import threading

import pytest
import torch
from torch import Tensor

from bolt.clip.transfer import ReadAhead

JOBS = [(0, 2), (2, 4), (4, 5)]


def images(job: tuple[int, int]) -> Tensor:
    return torch.arange(*job)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_come_in_order(device: str) -> None:
    with ReadAhead(images, JOBS, device) as read:
        assert [read(job).tolist() for job in JOBS] == [[0, 1], [2, 3], [4]]


def test_for_a_gpu_a_thread_reads_the_next_batches_before_they_are_asked_for() -> None:
    asked, third = [], threading.Event()
    main = threading.get_ident()

    def read(job: tuple[int, int]) -> Tensor:
        asked.append((job, threading.get_ident() != main))
        if job == JOBS[2]:
            third.set()
        return images(job)

    with ReadAhead(read, JOBS, "cuda") as ahead:
        assert ahead(JOBS[0]).tolist() == [0, 1]
        assert third.wait(10)
    assert asked == [(job, True) for job in JOBS]


def test_for_a_cpu_every_batch_is_read_when_it_is_asked_for() -> None:
    asked: list[tuple[int, int]] = []

    def read(job: tuple[int, int]) -> Tensor:
        asked.append(job)
        return images(job)

    with ReadAhead(read, JOBS, "cpu") as ahead:
        assert asked == []
        ahead(JOBS[0])
        assert asked == JOBS[:1]


def test_a_batch_out_of_order_is_read_at_once() -> None:
    with ReadAhead(images, JOBS, "cuda") as read:
        assert read(JOBS[1]).tolist() == [2, 3]
        assert [read(job).tolist() for job in JOBS] == [[0, 1], [2, 3], [4]]


def test_an_error_in_the_thread_is_raised_where_the_batch_is_asked_for() -> None:
    def read(job: tuple[int, int]) -> Tensor:
        if job == JOBS[1]:
            raise OSError("the disk is gone")
        return images(job)

    with ReadAhead(read, JOBS, "cuda") as ahead:
        ahead(JOBS[0])
        with pytest.raises(OSError, match="disk"):
            ahead(JOBS[1])


def test_leaving_early_ends_the_thread() -> None:
    before = threading.active_count()
    with ReadAhead(images, ((at, at + 1) for at in range(1000)), "cuda") as read:
        read((0, 1))
    assert threading.active_count() == before
