"""A candidate's fold: how many threads it computes with."""

import pytest
import torch

from bolt.methods.common.candidates import parse_candidate
from orchestrator.adapt.held_out_fold import threads_for


@pytest.mark.parametrize(
    ("candidate", "threads"), [("linear_probe", 1), ("gda", 1), ("lora(rank=2)", 2), ("bolt", 2), ("coop", 2)]
)
def test_only_candidates_that_run_a_tower_compute_with_several_threads(candidate: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threads_for(parse_candidate(candidate), 8):
            inside = torch.get_num_threads()
        assert (inside, torch.get_num_threads()) == (threads, 2)
    finally:
        torch.set_num_threads(before)
