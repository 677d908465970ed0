"""DMN against the official code (training-free, with a support) and its port with a single view."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.methods.dmn import DmnSettings, DynamicMemory, adapt, support_memory
from tests.bolt.methods.third_vectors import close, vector, world_task
from tests.helpers.frozen_tasks import clip_like


def test_the_static_memory_answers_as_the_official_one(backbone: Backbone) -> None:
    close(support_memory(world_task(backbone), DmnSettings()).answers(vector("world/test")), "dmn/p_static")


@pytest.mark.parametrize(("rule", "name"), [("higher_entropy", "weak"), ("always", "weak_always_replace")])
def test_the_stream_fills_the_memory_and_is_classified_as_by_the_port(rule: str, name: str) -> None:
    settings = DmnSettings(capacity=3, when_full=rule)  # type: ignore[arg-type]
    memory = DynamicMemory(vector("world/text"), 100.0, settings)
    outputs = []
    for number, unit in enumerate(vector("world/test")):
        memory.insert(number, unit)
        outputs.append(memory.classifier(unit[None]).exp()[0])
    close(torch.stack(outputs), f"dmn/{name}_output")
    expected = [[row for row in rows if row >= 0] for rows in vector(f"dmn/{name}_kept").tolist()]
    assert [memory.kept.get(label, []) for label in range(6)] == expected


def test_more_images_help_and_free_rows_add_nothing(backbone: Backbone) -> None:
    few, many = (clip_like(backbone, shots=shots) for shots in (1, 16))
    assert many.accuracy(adapt(many.task, DmnSettings())) > few.zero_shot() + 2
    memory = support_memory(few.task, DmnSettings())
    wider = replace(memory, rows_CRD=torch.nn.functional.pad(memory.rows_CRD, (0, 0, 0, 5)))
    torch.testing.assert_close(wider(few.test_ND), memory(few.test_ND))
