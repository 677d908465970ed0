"""Iso-C: equal singular values of the summed task vectors, against the numbers of the official code."""

from functools import partial

import torch
from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.tensor_names import matrix_names
from bolt.methods import METHODS
from bolt.methods.iso_c import isotropic
from tests.helpers.towers import RandomSources, make_task, weights_of
from tests.helpers.waves import numbers

ISO_C = METHODS["iso_c"]
close = partial(torch.testing.assert_close, rtol=0, atol=1e-5)


def matrix(task: int, rows: int, columns: int, rate: float) -> Tensor:
    """Return the task vector of one matrix in the official code's example."""
    i, j = torch.arange(rows, dtype=torch.float64)[:, None], torch.arange(columns, dtype=torch.float64)
    wave = torch.sin((rate + 0.3 * task) * i + (1.3 - 0.2 * task) * j + 0.1 + task)
    return wave * (1 + 0.5 * torch.sin(1.9 * i + 0.31 * (task + 1) * j + 2))


def test_a_wide_matrix_gives_the_official_numbers() -> None:
    merged = isotropic(sum((matrix(task, 6, 9, 0.7) for task in range(3)), torch.zeros(6, 9).double()))
    close(torch.linalg.svdvals(merged), torch.full((6,), 3.300691).double())
    row = [2.338201, 1.937974, -0.312471, -0.660812, -0.094463, 0.159474, 0.692629, 0.762185, -0.205689]
    close(merged[0], numbers(*row))


def test_a_tall_matrix_gives_the_official_numbers() -> None:
    merged = isotropic(matrix(0, 10, 8, 0.8) + matrix(1, 10, 8, 0.8))
    close(torch.linalg.svdvals(merged), torch.full((8,), 1.905233).double())
    row = [1.079941, 1.424871, -0.199156, -0.021133, -0.119184, -0.002620, 0.101895, 0.195535]
    close(merged[0], numbers(*row))


def test_a_zero_direction_stays_zero() -> None:
    assert not isotropic(torch.zeros(4, 3)).any()
    flat = torch.outer(torch.arange(1.0, 5), torch.tensor([1.0, -1, 2]))
    close(isotropic(flat), flat / 3)


def test_the_merged_tower(backbone: Backbone) -> None:
    """Against the definition, by plain decompositions in float64."""
    sources = RandomSources(backbone)
    adapted = ISO_C.adapt(make_task(backbone, sources=sources), ISO_C.configure({"alphas": [0.7]}))
    assert adapted.trainable_parameters == 0
    after, base = weights_of(adapted), backbone.tower.state_dict_open_clip()
    for name, before in base.items():
        vectors = torch.stack([vector[name] for vector in sources.vectors.values()]).double()
        update = vectors.mean(dim=0)
        if name in matrix_names(base):
            u, s, vh = torch.linalg.svd(vectors.sum(dim=0), full_matrices=False)
            update = s.mean() * u @ vh
        torch.testing.assert_close(after[name], before + 0.7 * update.float(), rtol=1e-4, atol=1e-5)


def test_a_zero_source_changes_no_matrix(backbone: Backbone) -> None:
    sources = RandomSources(backbone, count=2)
    name = "transformer.resblocks.0.mlp.c_fc.weight"
    settings = ISO_C.configure({"alphas": [1.0]})
    towers = []
    for _ in range(2):
        towers.append(ISO_C.adapt(make_task(backbone, sources=sources), settings).tower)
        sources.vectors["zero"] = {key: 0 * tensor for key, tensor in sources.vectors["source_0"].items()}
    one, other = (tower.state_dict_open_clip()[name] for tower in towers if tower is not None)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
