"""CoOp and KgCoOp against numbers of the official codes (KaiyangZhou/CoOp ff61507, Dassl.pytorch c61a1b5)."""

from dataclasses import replace
from typing import Any

import open_clip
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.common.coop_training import adam, coop_schedule, sgd
from bolt.methods.common.prompts import ClassPosition, LearnedPrompts, word_embeddings
from bolt.methods.coop import EPOCHS, CoOpSettings, adapt, initial_context
from bolt.methods.kgcoop import KgCoOpSettings
from bolt.task.classifiers import CosineClassifier, NoNewClasses
from bolt.task.task import ClassText
from bolt.training.loop import PlainRecipe, cross_entropy, fit
from tests.bolt.methods import third_vectors as third
from tests.helpers.adapting import classifier, with_curve, with_epochs
from tests.helpers.frozen_tasks import frozen_task
from tests.helpers.towers import make_task
from tests.helpers.waves import close, wave

NAMES = ("cat", "annual_crop land", "t-shirt")
CONTEXT = (0.02 * wave(4, 16, 0.7, 1.3, 0.2)).float()


@pytest.fixture(scope="module")
def official() -> Backbone:
    """Return a CLIP with a text tower of width 16, with the weights that gave the reference numbers."""
    vision = {"image_size": 32, "patch_size": 16, "layers": 1, "width": 16, "head_width": 8}
    text = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
    model = open_clip.CLIP(8, vision, text, quick_gelu=True)
    parts = ("attn.in_proj_weight", "attn.in_proj_bias", "attn.out_proj.weight", "attn.out_proj.bias", "ln_1.weight",
             "ln_1.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias", "ln_2.weight",
             "ln_2.bias")  # fmt: skip
    names = ["positional_embedding", "text_projection", "token_embedding.weight"]
    names += [f"transformer.resblocks.{block}.{part}" for block in range(2) for part in parts]
    names += ["ln_final.weight", "ln_final.bias"]
    own = dict(model.named_parameters())
    with torch.no_grad():
        for p, name in enumerate(names):
            i = torch.arange(own[name].numel(), dtype=torch.float64)
            values = 0.15 * torch.sin(0.37 * i + 0.9 * p + 0.1 + 0.013 * i.sqrt())
            is_scale = ("ln_" in name) and name.endswith("weight")
            own[name].copy_((values + is_scale).view_as(own[name]))
    return Backbone.from_open_clip(model, open_clip.tokenizer.SimpleTokenizer(), "official")


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("end", [-0.410929, -0.488224, -0.493373, -0.429308]),
        ("middle", [-0.468452, -0.504519, -0.468897, -0.368439]),
        ("front", [-0.448924, -0.501033, -0.480828, -0.393737]),
    ],
)
def test_class_vectors_are_official(official: Backbone, position: ClassPosition, expected: list[float]) -> None:
    close(LearnedPrompts(official, NAMES, 4, position).encode(CONTEXT)[1, :4], expected)


def test_words_as_context_give_the_official_class_vector_and_that_of_the_plain_prompt(official: Backbone) -> None:
    context = word_embeddings(official, "a photo of a")
    assert context.shape == (4, 16)
    encoded = LearnedPrompts(official, NAMES, 4).encode(context)
    close(encoded[0, :4], [-0.476785, -0.504986, -0.462084, -0.355494])
    torch.testing.assert_close(
        encoded, official.zero_shot_head([n.replace("_", " ") for n in NAMES], ["a photo of a {}."])
    )


def test_training_follows_the_official_code(official: Backbone) -> None:
    features_BD, labels_B = wave(4, 8, 0.7, 1.3, 0.2).float(), torch.tensor([0, 1, 2, 1])
    prompts, context = LearnedPrompts(official, NAMES, 4), CONTEXT.clone().requires_grad_()

    def logits() -> Tensor:
        return CosineClassifier(prompts.encode(context), 100.0)(features_BD)

    close(logits()[0].detach(), [-5.96877, -6.89842, -7.89935])
    losses: list[float] = []
    fit(
        [context],
        lambda epoch, rows: cross_entropy(logits(), labels_B),
        lambda epoch: torch.arange(4),
        PlainRecipe(10, 4, 2e-3, 5e-4),
        report=lambda epoch, row: losses.append(row["train_loss"]),
        make_optimiser=sgd,
        schedule=lambda step, steps: 2e-3 if step else 1e-5,
    )
    expected = [1.92897, 1.92893, 1.91063, 1.88481, 1.85238, 1.81407, 1.77007, 1.72023, 1.66374, 1.59934]
    assert losses == pytest.approx(expected, abs=1e-4)
    close(context[0, :6].detach(), [0.027743, 0.039631, 0.029737, 0.009733, 0.001384, 0.004788])
    close(context[3, :6].detach(), [0.014907, -0.038685, -0.003678, -0.060156, -0.020284, -0.049823])


@pytest.mark.parametrize(("shots", "epochs"), [(1, 50), (2, 100), (4, 100), (8, 200), (16, 200)])
def test_more_images_train_longer(shots: int, epochs: int) -> None:
    labels = torch.arange(3).repeat(shots)
    assert CoOpSettings().epochs_of(labels, EPOCHS) == epochs
    assert CoOpSettings(epochs=7).epochs_of(labels, EPOCHS) == 7
    assert METHODS["coop"].configure({"preset": "imagenet"}).epochs == 50


@pytest.mark.parametrize(("changes", "count"), [({}, 2 * 16), ({"class_specific": True}, 3 * 2 * 16)])
def test_it_trains_the_context_alone(changes: dict[str, Any], count: int, backbone: Backbone) -> None:
    task, losses = with_curve(make_task(backbone))
    adapted = adapt(task, CoOpSettings(context_tokens=2, epochs=40, learning_rate=0.02, **changes))
    assert adapted.trainable_parameters == count
    assert adapted.tower is None
    assert losses[-1] < losses[0] - 0.01


def test_the_epochs_cycle_through_the_views(backbone: Backbone) -> None:
    task, seen = make_task(backbone), list[int]()
    read = task.support.features

    def watched(view: int) -> Tensor:
        seen.append(view)
        return read(view)

    watching = replace(task, support=replace(task.support, features=watched))
    adapt(watching, CoOpSettings(context_tokens=2, epochs=3, views=2))
    assert seen == [1, 2]


def test_the_context_is_keyed_by_the_seed_and_starts_at_words_if_asked(backbone: Backbone) -> None:
    one, other = (initial_context(make_task(backbone, seed=seed), CoOpSettings(context_tokens=300)) for seed in (1, 2))
    assert not torch.equal(one, other)
    assert float(one.std()) == pytest.approx(0.02, rel=0.1)
    words = CoOpSettings(initial_words="ab c", class_specific=True)
    context = initial_context(make_task(backbone), words)
    assert context.shape[0] == 3
    assert torch.equal(context[2], word_embeddings(backbone, "ab c"))


def test_new_classes_are_named_with_the_learned_context(backbone: Backbone) -> None:
    task, named = with_epochs(make_task(backbone), lambda adapted: adapted.embed_classes is not None)
    adapted, specific = (
        adapt(task, CoOpSettings(context_tokens=2, epochs=2, class_specific=specific)) for specific in (False, True)
    )
    assert adapted.embed_classes is not None
    assert specific.embed_classes is not None
    assert named == [True] * 4, "after each epoch too"
    names, head_CD = task.class_text.class_names, classifier(adapted, CosineClassifier).head_CD
    torch.testing.assert_close(adapted.embed_classes(names), head_CD)
    assert adapted.embed_classes(["new"]).shape == (1, 16)
    with pytest.raises(NoNewClasses):
        specific.embed_classes(["new"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ClassText(("a", "b", "longest"), ("{}",)), r"'longest' has 19 tokens \(10 .* takes at most 16"),
        (None, "class names"),
    ],
)
def test_no_class_names_and_too_long_ones_are_refused(text: ClassText | None, says: str, backbone: Backbone) -> None:
    with pytest.raises(ValueError, match=says):
        adapt(replace(make_task(backbone), text=text), CoOpSettings(context_tokens=10))


def test_one_class_changes_by_the_weight_decay_only(backbone: Backbone) -> None:
    task = make_task(backbone, classes=1)
    start = initial_context(task, CoOpSettings(context_tokens=2))
    adapted = adapt(task, CoOpSettings(context_tokens=2, epochs=1))
    expected = LearnedPrompts(backbone, task.class_text.class_names, 2).encode(start * (1 - 1e-5 * 5e-4))
    torch.testing.assert_close(classifier(adapted, CosineClassifier).head_CD, expected)


def test_features_that_are_not_numbers_are_refused(backbone: Backbone) -> None:
    task = make_task(backbone)
    features_ND = task.support.features(1).clone()
    features_ND[2, 0] = torch.inf
    spoiled = replace(task, support=replace(task.support, features=lambda view: features_ND))
    with pytest.raises(ValueError, match=r"features of view \d are NaN or infinite"):
        adapt(spoiled, CoOpSettings(context_tokens=2, epochs=1))


@pytest.mark.parametrize(
    ("epochs", "rates"),
    [(3, [1e-5, 2e-3, 1.5e-3]), (5, [1e-5, 2e-3, 1.809e-3, 1.309e-3, 6.91e-4])],
)
def test_the_schedule_is_the_official_one(epochs: int, rates: list[float]) -> None:
    """Numbers of the official code (Dassl.pytorch c61a1b5)."""
    rate = coop_schedule(PlainRecipe(epochs, 32, 2e-3, 0.0))
    assert [rate(step, 2) for step in range(0, 2 * epochs, 2)] == pytest.approx(rates, rel=1e-3)
    assert [rate(step, 2) for step in range(1, 2 * epochs, 2)] == pytest.approx(rates, rel=1e-3)


def test_weight_decay_is_a_penalty_inside_the_gradient() -> None:
    """Without a gradient of the loss, the decay moves a weight by the rate (Adam) or by rate x decay x weight (SGD)."""
    recipe = PlainRecipe(1, 4, 0.1, 0.01)
    moved = {}
    for make in (sgd, adam):
        weight = torch.tensor([2.0], requires_grad=True)

        def no_loss(epoch: int, rows: Tensor, weight: Tensor = weight) -> Tensor:
            return 0 * weight.sum()

        fit([weight], no_loss, lambda epoch: torch.arange(4), recipe, make_optimiser=make, schedule=lambda *step: 0.1)
        moved[make] = 2.0 - float(weight.detach())
    assert moved[sgd] == pytest.approx(0.1 * 0.01 * 2, rel=1e-3)
    assert moved[adam] == pytest.approx(0.1, rel=1e-4)


def test_the_training_of_kgcoop_follows_the_official_code() -> None:
    settings, images = KgCoOpSettings(epochs=6, batch_size=24, learning_rate=0.05), third.vector("kgcoop/images")
    teacher, labels = third.vector("kgcoop/teacher"), torch.arange(24) // 4
    task = frozen_task(third.small_backbone(torch.float64), lambda view: images, labels, teacher)
    task, losses = with_curve(replace(task, text=ClassText(third.NAMES, ("photo of a {}.",))))
    third.close(initial_context(task, settings), "kgcoop/context_start")
    head_CD = classifier(METHODS["kgcoop"].adapt(task, settings), CosineClassifier).head_CD
    assert losses == pytest.approx(third.vector("kgcoop/losses").tolist(), rel=1e-5)
    third.close(head_CD, "kgcoop/text_after")
    distance = 1 - F.cosine_similarity(head_CD, teacher, dim=-1).mean()
    assert float(distance) == pytest.approx(float(third.vector("kgcoop/score_after")), rel=1e-5)
