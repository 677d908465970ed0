"""ProKeR against the authors' code, and its leave-one-out against refitting."""

from dataclasses import replace

import torch
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.proker import KernelRidge, ProKeRSettings, adapt, kernel
from bolt.task.classifiers import CacheClassifier
from tests.bolt.methods.third_vectors import close, vector, with_test_as_validation, world_task
from tests.helpers.adapting import classifier
from tests.helpers.frozen_tasks import clip_like

ONE = ProKeRSettings(views=1, betas=(1.5,), lambdas=(0.05,))


def test_kernel_coefficients_and_logits_are_the_official_ones(backbone: Backbone) -> None:
    adapted = adapt(world_task(backbone), ONE)
    cache = classifier(adapted, CacheClassifier)
    close(kernel(vector("world/support"), vector("world/support"), 1.5), "proker/kernel_ss")
    close(cache.values_NC, "proker/alpha")
    close(adapted.classify(vector("world/test")), "proker/logits", scale=100)


def test_leave_one_out_is_the_official_closed_form_and_equals_refitting() -> None:
    rows, labels, text = vector("world/support"), vector("world/labels"), vector("world/text")
    residuals = F.one_hot(labels, 6).double() - rows.double() @ text.double().T
    left_out = KernelRidge(rows, residuals, 1.5).left_out(0.05, len(rows))
    close(rows.double() @ text.double().T + left_out, "proker/loo_logits")
    views = torch.cat([rows, F.normalize(rows + 0.1 * rows.flip(0), dim=-1)])
    twice = torch.cat([residuals, F.one_hot(labels, 6).double() - views[24:].double() @ text.double().T])
    predicted = KernelRidge(views, twice, 1.5).left_out(0.05, 24)
    kept = torch.arange(48) % 24 != 5
    refitted = KernelRidge(views[kept], twice[kept], 1.5).coefficients(0.05)
    torch.testing.assert_close(predicted[[5, 29]], kernel(views[[5, 29]], views[kept], 1.5) @ refitted)


def test_the_search_on_validation_images_is_the_official_one(backbone: Backbone) -> None:
    task = world_task(backbone)
    settings = ProKeRSettings(
        views=1, betas=tuple(torch.linspace(0.5, 3, 6).tolist()), lambdas=tuple(torch.linspace(0.001, 1, 5).tolist())
    )
    adapted = adapt(replace(task, validation=with_test_as_validation(task)), settings)
    beta, strength = vector("proker/grid_best").tolist()
    assert (adapted.details["beta"], adapted.details["lambda"]) == (beta, strength)
    close(adapted.classify(vector("world/test")), "proker/grid_logits", scale=100)


def test_one_image_takes_the_authors_pair(backbone: Backbone) -> None:
    single = adapt(clip_like(backbone, shots=1).task, ProKeRSettings())
    assert (single.details["beta"], single.details["lambda"]) == (3.0, 0.05)
