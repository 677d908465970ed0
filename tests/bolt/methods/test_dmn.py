"""DMN against the official code (training-free, with a support) and its port with a single view."""

from dataclasses import replace

import pytest
import torch

from bolt.clip.backbone import Backbone
from bolt.methods.common.cross_validation import with_images
from bolt.methods.dmn import DmnSettings, DynamicMemory, support_memory
from bolt.methods.dmn_trained import DmnTrainedSettings
from bolt.methods.dmn_trained import adapt as train
from bolt.task.classifiers import TrainedMemoryClassifier
from tests.bolt.methods.third_vectors import close, vector, world_task
from tests.helpers.adapting import classifier, with_curve
from tests.helpers.frozen_tasks import clip_like


def test_the_static_memory_answers_as_the_official_one(backbone: Backbone) -> None:
    close(support_memory(world_task(backbone), DmnSettings()).answers(vector("world/test")), "dmn/p_static")


@pytest.mark.parametrize(("rule", "name"), [("higher_entropy", "weak"), ("always", "weak_always_replace")])
def test_the_stream_fills_the_memory_and_is_classified_as_by_the_port(rule: str, name: str) -> None:
    settings = DmnSettings(capacity=3, when_full=rule)  # type: ignore[arg-type]
    memory = DynamicMemory(vector("world/text"), 100.0, settings)
    outputs = []
    for number, unit in enumerate(vector("world/test")):
        memory.insert(number, unit[None])
        outputs.append(memory.classifier(unit[None]).exp()[0])
    close(torch.stack(outputs), f"dmn/{name}_output")
    expected = [[row for row in rows if row >= 0] for rows in vector(f"dmn/{name}_kept").tolist()]
    assert [memory.kept.get(label, []) for label in range(6)] == expected


def test_views_tell_the_class_as_in_the_official_code() -> None:
    memory = DynamicMemory(vector("world/text"), 100.0, DmnSettings(capacity=3, views=12, kept=0.3))
    answers = []
    for number, unit_VD in enumerate(vector("world/views")):
        memory.insert(number, unit_VD)
        answers.append(memory.classifier.answers(unit_VD[:1])[0])
    close(torch.stack(answers), "dmn/p_dynamic_zero_shot")
    assert [len(memory.kept.get(label, [])) for label in range(6)] == vector("dmn/count_memory").tolist()


def test_free_rows_add_nothing(backbone: Backbone) -> None:
    few = clip_like(backbone, shots=1)
    memory = support_memory(few.task, DmnSettings())
    wider = replace(memory, rows_CRD=torch.nn.functional.pad(memory.rows_CRD, (0, 0, 0, 5)))
    torch.testing.assert_close(wider(few.test_ND), memory(few.test_ND))


def test_the_training_follows_the_official_code(backbone: Backbone) -> None:
    raw = vector("ape_t/train_raw")
    task, losses = with_curve(world_task(backbone, raw))
    views = {0: vector("world/support")}  # the memory reads view 0
    support = replace(task.support, features=lambda view: views.get(view, raw))
    adapted = train(replace(task, support=support), DmnTrainedSettings(epochs=8))
    trained = classifier(adapted, TrainedMemoryClassifier)
    assert losses == pytest.approx(vector("dmn/ft_losses").tolist(), rel=1e-4)
    close(trained.output_CD, "dmn/ft_global_ffn_bias")
    torch.testing.assert_close(trained.query_D, vector("dmn/ft_global_bias").mean(dim=0), rtol=1e-4, atol=1e-6)
    test = vector("world/test")
    close((100 * test @ trained.head_CD.T).softmax(dim=-1), "dmn/ft_p_text")
    close(trained.answers(test), "dmn/ft_p_static")
    assert adapted.trainable_parameters == 5 * 6 * 16


def test_free_rows_stay_free_in_training(backbone: Backbone) -> None:
    task, rows = clip_like(backbone, shots=8).task, torch.arange(25)  # of ten classes: they have unequal sizes
    trained = classifier(train(with_images(task, rows), DmnTrainedSettings(epochs=2)), TrainedMemoryClassifier)
    assert not trained.values_CRD[-1, -1].any()
