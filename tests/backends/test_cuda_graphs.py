"""The bookkeeping around CUDA graphs, with a stand-in for a graph that simply computes again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from glassgpt.backends.torch import cuda_graphs as graph


class Again:
    made = 0

    def __init__(self, inputs: Tensor, forward: Callable[[], Tensor]) -> None:
        type(self).made += 1
        self.forward = forward
        self.outputs_of = forward()

    def replay(self) -> Tensor:
        # As a graph does: new numbers in the old tensors.
        old = self.outputs_of
        old.copy_(self.forward())
        return old


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    Again.made = 0
    monkeypatch.setattr(graph, "CapturedGraph", Again)


def scaled(values: Tensor, settings: tuple[Tensor, int]) -> list[Tensor]:
    factor, power = settings
    return [(values * factor) ** power]


def test_the_same_numbers_before_and_after_recording_and_for_any_rows() -> None:
    function = graph.CapturedFunction(scaled)
    factor = torch.tensor([[2.0], [3.0], [4.0], [5.0]])
    for call in range(40):
        rows = 1 + call % 4
        values = torch.full((rows, 3), float(call))
        (found,) = function(values, (factor[:rows], 2))
        assert torch.equal(found, (values * factor[:rows]) ** 2)
    assert Again.made > 0


def test_what_comes_seldom_is_not_recorded_and_there_is_an_end() -> None:
    function = graph.CapturedFunction(scaled)
    for width in range(1, 200):  # a shape that grows with every call, as penalties once made it
        function(torch.ones(1, width), (torch.ones(1, 1), 1))
    assert Again.made == 0
    for power in range(40):
        for _ in range(graph.CALLS_BEFORE_CAPTURE):
            function(torch.ones(2, 3), (torch.ones(2, 1), power))
    assert Again.made == 40
    assert len(function.graphs) == graph.MAX_GRAPHS
    before = Again.made
    function(torch.ones(2, 3), (torch.ones(2, 1), 39))  # the last is still there ...
    assert Again.made == before
    for _ in range(graph.CALLS_BEFORE_CAPTURE):
        function(torch.ones(2, 3), (torch.ones(2, 1), 0))  # ... and the first is not
    assert Again.made == before + 1
