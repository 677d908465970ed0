"""Every method runs on a small world, repeats bit for bit, and obeys the protocol's switches."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.methods import METHODS, UnknownName, base
from bolt.methods.base import Method, Registry, register_tower_training
from bolt.methods.bolt import BoltSettings
from bolt.protocol import PUBLISHED, STRICT, SWITCHES, Protocol
from bolt.task.classifiers import Classifier, build_classifier
from bolt.task.support import batch_order
from bolt.task.task import Adapted, Support, Task
from bolt.training.finetune import finetune_source
from bolt.training.loop import Diverged, TrainingRecipe
from tests.helpers.adapting import SWITCHED, id_of, logits_of, protocols_of, run
from tests.helpers.quick_settings import quick_settings
from tests.helpers.towers import RandomSources, make_task, random_backbone

TRACKS = ("fewshot", "tta", "tta_stream", "tta_image")
MEASURED = [(name, track) for name, method in sorted(METHODS.items()) for track in TRACKS if track in method.tracks]
ORACLE = {"config_selection", "tta_alpha"}
CHANGED = {key for key in SWITCHES if getattr(STRICT, key) != getattr(PUBLISHED, key)} - ORACLE
"""The switches that ``PUBLISHED`` changes, without the two that decide whether a task has an oracle."""
FEW_SHOT = [name for name, track in MEASURED if track == "fewshot"]


@pytest.mark.parametrize(
    ("name", "track", "protocol"),
    [(name, track, protocol) for name, track in MEASURED for protocol in protocols_of(name)],
    ids=id_of,
)
def test_every_method_repeats_bit_for_bit(name: str, track: str, protocol: Protocol, backbone: Backbone) -> None:
    """The classifier can be written down, and nothing else is changed: no backbone, no generator."""
    frozen = [*backbone.tower.parameters(), *backbone.text_tower.parameters()]
    before = [tensor.clone() for tensor in frozen]
    unlabelled, drawn, read = track.startswith("tta"), torch.get_rng_state(), set[str]()

    class Watched(Protocol):
        def __getattribute__(self, switch: str) -> Any:
            read.add(switch)
            return super().__getattribute__(switch)

    task = make_task(backbone, protocol=Watched(**vars(protocol)), unlabelled=unlabelled)
    (one, logits), (other, same) = (run(name, task) for _ in range(2))
    assert logits.shape == (30 if unlabelled else 12, 3)
    assert torch.isfinite(logits).all()
    assert torch.equal(logits, same)
    assert one.details == other.details
    assert one.coefficients.keys() == other.coefficients.keys()
    assert all(torch.equal(one.coefficients[key], other.coefficients[key]) for key in one.coefficients)
    assert one.trainable_parameters == other.trainable_parameters
    assert (one.tower is not None) == METHODS[name].changes_tower or name == "auto"  # its candidate decides
    assert one.tower is None or not any(tensor.requires_grad for tensor in one.tower.parameters())
    assert all(map(torch.equal, before, frozen)), "the backbone must not move"
    assert backbone.tower.prompts is backbone.text_tower.prompts is None
    assert torch.equal(drawn, torch.get_rng_state()), "the global generator is nobody's"
    assert isinstance(one.classify, Classifier)
    assert not any(getattr(value, "requires_grad", False) for value in vars(one.classify).values())
    again = build_classifier(one.classify.kind, one.classify.tensors(), one.classify.numbers())
    assert torch.equal(logits_of(task, replace(one, classify=again)), logits)
    assert ("schedule_offset" in read) == (name == "bolt"), "the late schedule is BOLT's alone"
    assert bool(read & CHANGED) == (name in SWITCHED), "the list of the methods that PUBLISHED changes"


@pytest.mark.parametrize(("shots", "classes"), [(1, 3), (4, 1), (1, 1)])
@pytest.mark.parametrize(
    ("name", "protocol"), [(name, protocol) for name in FEW_SHOT for protocol in protocols_of(name)], ids=id_of
)
def test_tiny_supports_are_enough(name: str, shots: int, classes: int, protocol: Protocol, backbone: Backbone) -> None:
    _, logits = run(name, make_task(backbone, shots=shots, classes=classes, protocol=protocol))
    assert logits.shape == (shots * classes, classes)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not {"fewshot"} & set(method.tracks)])
def test_a_method_of_test_time_refuses_a_task_without_test_images(name: str, backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="tta"):
        run(name, make_task(backbone))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.uses_source_models])
def test_a_method_that_reads_sources_refuses_a_task_without_any(name: str, backbone: Backbone) -> None:
    unlabelled = "fewshot" not in METHODS[name].tracks
    for none in (None, RandomSources(backbone, count=0)):
        with pytest.raises(ValueError, match=r"no sources|at least one source"):
            run(name, replace(make_task(backbone, unlabelled=unlabelled), sources=none))


@pytest.mark.parametrize("name", ["tda", "trans_clip", "stata", "em_dirichlet", "layer_norm"])
def test_features_of_test_images_that_are_no_numbers_are_refused(name: str, backbone: Backbone) -> None:
    task = make_task(backbone, unlabelled=True)
    features = task.test_images.features()
    features[3, 2] = torch.nan
    broken = replace(task, unlabelled=replace(task.test_images, features=lambda: features))
    with pytest.raises((ValueError, Diverged), match="NaN"):
        run(name, broken)


def test_the_late_schedule_changes_bolt(backbone: Backbone) -> None:
    protocols = (STRICT, STRICT.with_switches(schedule_offset=True))
    assert not torch.equal(*(run("bolt", make_task(backbone, protocol=protocol))[1] for protocol in protocols))


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW_SHOT)
def test_a_class_without_images_leaves_the_logits_finite(name: str, backbone: Backbone) -> None:
    """The support is imbalanced, and a class has no image, as on the imbalanced track."""
    task = make_task(backbone)
    rows = torch.nonzero(task.support.labels_N != 1).flatten()[1:]  # the other classes get unequal numbers
    support = Support(
        labels_N=task.support.labels_N[rows],
        indices_N=task.support.indices_N[rows],
        pixels=lambda view, own: task.support.pixels(view, rows[own.cpu()]),
        features=lambda view: task.support.features(view)[rows],
        order=lambda epoch: batch_order(len(rows), dataset="blobs", seed=1, epoch=epoch),
    )
    _, logits = run(name, replace(task, support=support))
    assert logits.shape == (7, 3)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", [name for name in FEW_SHOT if METHODS[name].names_new_classes])
def test_methods_that_name_new_classes_return_a_classifier_that_takes_them(name: str, backbone: Backbone) -> None:
    task = make_task(backbone)
    adapted, known = run(name, task)
    assert isinstance(adapted.classify, Classifier)
    more = adapted.classify.add_classes(backbone.zero_shot_head(["something else"], ["{}"]))
    logits = logits_of(task, replace(adapted, classify=more))
    assert logits.shape == (12, 4)
    assert torch.equal(logits[:, :3].argmax(dim=1), known.argmax(dim=1))


def test_zero_shot_is_the_text_head(backbone: Backbone) -> None:
    task = make_task(backbone)
    cosines = torch.nn.functional.cosine_similarity(task.support.features(0)[:, None], task.head_CD, dim=-1)
    torch.testing.assert_close(run("zero_shot", task)[1], backbone.logit_scale * cosines)


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'zero_shot'"):
        METHODS["zeroshot"]
    with pytest.raises(UnknownName, match="did you mean 'top_k'"):
        METHODS["bolt"].configure({"topk": 3})


def test_settings_are_checked() -> None:
    bolt = METHODS["bolt"]
    assert bolt.configure({"alphas": [1, 2], "learning_rate": np.int64(1), "warmup_steps": 5}) == BoltSettings(
        alphas=(1.0, 2.0), learning_rate=1.0, warmup_steps=5
    )
    assert bolt.configure({}, track="tta").alpha_by == "mutual_information"


BOLT_STARTS: list[dict[str, Any]] = [
    {"top_k": 0}, {"alphas": []}, {"alpha_by": "accuracy"}, {"orthogonalisation": "qr"}, {"whitening_epsilon": 0.0},
    {"pooling": "median"}, {"sign": "positive"}, {"matrices": []}, {"matrices": ["mlp"]}, {"other_tensors": "mean"},
    {"padded_sources": 0},
]  # fmt: skip
WRONG_SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adamerging": [{"steps": 0}, {"initial": 1.5}, {"coefficients": "both"}, {"learning_rate": 0}],
    "atlas": [{"partitions": -1}, {"storage": "int8"}],
    "bitfit": [{"biases": []}, {"biases": ["conv1"]}],
    "bolt": [*BOLT_STARTS, {"epochs": 0}, {"top_k": "12"}, {"warmup_steps": "many"}],
    "bolt_pooled": BOLT_STARTS,
    "clap": [{"constraint": "l1"}],
    "clip_adapter": [{"ratio": 1.5}, {"epochs": 0}],
    "clipfit": [{"distance_weight": -1}, {"epochs": 0}],
    "coop": [{"context_tokens": 0}, {"class_position": "left"}, {"epochs": 0}],
    "cross_modal": [{"iterations": 0}, {"batch_size": 1}, {"wise_ft": 2.0}],
    "gda": [{"views": 0}, {"alpha": -1.0}],
    "iso_c": [{"alphas": []}],
    "linear_probe": [{"search": "test"}, {"logit_steps": []}, {"one_shot_move": 0}, {"folds": 1}, {"epochs": 0}],
    "logistic_probe": [{"c": 0}, {"one_shot_c": -1}, {"folds": 1}, {"max_iterations": 0}],
    "lora": [
        {"towers": "text"}, {"targets": ("v",), "match_sources": 16, "towers": "both"}, {"rank": 0}, {"dropout": 1.0},
        {"targets": []}, {"targets": ["q", "q"]}, {"targets": ["attn"]}, {"last_blocks": 2, "match_sources": 16},
    ],
    "lora_xs": [{"rank": 0}, {"alpha": 0}, {"init_std": -1}, {"matrices": ["q"]}],
    "lp_plus_plus": [
        {"variant": "theirs"}, {"steps": 0}, {"views": 0}, {"step": 0}, {"momentum": 1.0}, {"search": "test"},
        {"folds": 1},
    ],
    "maple": [{"depth": 0}, {"tokens": 0}],
    "prolip": [{"steps": 0}, {"views": 0}, {"learning_rate": 0}, {"regularisation": -1}],
    "promptsrc": [{"text_weight": -1}, {"average_deviation": 0}],
    "svf": [{"matrices": ["conv1"]}, {"matrices": []}, {"singular_values": "relu"}],
    "task_arithmetic": [{"alphas": []}],
    "task_res": [{"text_norm": 0.0}],
    "tda": [{"capacity": 0}],
    "ties": [{"keep_percent": 0}, {"keep_percent": 101}, {"alphas": []}, {"merge": "max"}],
    "tip_adapter": [{"search": "test"}, {"passes": 0}],
    "trans_clip": [{"neighbours": 0}],
    "tsv_merge": [{"alphas": []}],
    "two_stage": [{"epochs": 1}, {"first_stage": 1.0}, {"layer_norms": "none"}],
    "vera": [{"rank": 0}, {"d_initial": 0}, {"matrices": ["q"]}],
}  # fmt: skip
"""Method -> settings that are refused. The message names a setting."""
PRESETS = {
    ("clap", "zs_lp"): ("constraint", "none"),
    ("clipfit", "imagenet"): ("epochs", 10),
    ("coop", "photo"): ("initial_words", "a photo of a"),
    ("coop", "imagenet"): ("epochs", 50),
    ("lp_plus_plus", "official_code"): ("variant", "official_code"),
    ("maple", "cross_dataset"): ("depth", 3),
    ("task_res", "imagenet"): ("learning_rate", 2e-4),
}
"""Method and preset -> a setting and its value."""


@pytest.mark.parametrize("name", WRONG_SETTINGS)
def test_wrong_settings_are_refused(name: str) -> None:
    for wrong in WRONG_SETTINGS[name]:
        with pytest.raises(
            ValueError, match="|".join([*wrong, *(key for other in WRONG_SETTINGS[name] for key in other)])
        ):
            METHODS[name].configure(wrong)


@pytest.mark.parametrize(("name", "preset"), PRESETS)
def test_presets_set_what_they_say(name: str, preset: str) -> None:
    setting, value = PRESETS[name, preset]
    assert getattr(METHODS[name].configure({"preset": preset}), setting) == value


def test_two_methods_cannot_share_a_name() -> None:
    registry = Registry()
    method = METHODS["zero_shot"]
    registry.register(method)
    with pytest.raises(ValueError, match="two methods"):
        registry.register(method)
    with pytest.raises(ValueError, match="lower-case"):
        registry.register(replace(method, name="Zero-Shot"))


def test_a_method_is_registered_by_a_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decorator returns the function. Defaults of the registration are replaced by the fields that are given."""
    monkeypatch.setattr(base, "METHODS", Registry())

    @register_tower_training(title="By its file", paper=None)
    def adapt(task: Task, settings: BoltSettings) -> Adapted:
        raise AssertionError

    assert register_tower_training(name="named", title="By its name", paper=None, changes_tower=False)(adapt) is adapt
    found = base.METHODS["test_methods"]
    assert found == replace(base.METHODS["named"], name="test_methods", title="By its file", changes_tower=True)
    assert found.adapt is adapt
    wrong: Any = register_tower_training
    for fields in ({"title": "Mine"}, {"title": "Mine", "paper": None, "name": "mine", "colour": 1}):
        with pytest.raises(TypeError):
            wrong(**fields)(adapt)
    with pytest.raises(TypeError, match="positional"):  # without brackets, nothing would be registered
        wrong(adapt)
    adapt.__module__ = "__main__"
    with pytest.raises(ValueError, match="'__main__'"):
        register_tower_training(title="In a notebook", paper=None)(adapt)
    for title in ("In a notebook", "In a cell that runs again"):
        register_tower_training(name="mine", title=title, paper=None)(adapt)
    assert base.METHODS["mine"].title == "In a cell that runs again"


@pytest.mark.parametrize(
    "wrong",
    [{"palette": "3"}, {"version": "2"}, {"tracks": "fewshot"}, {"paper": 5}, {"candidates": ()},
     {"training_forwards": "3"}, {"meta_recipe": 1}, {"name": None}, {"adapt": "adapt"}],
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_refused_when_the_method_is_made(wrong: dict[str, Any]) -> None:
    """A text as ``palette`` stopped the report, and one as ``tracks`` was read letter by letter."""
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*; it takes a value of the type"):
        replace(METHODS["zero_shot"], **wrong)
    assert replace(METHODS["zero_shot"], palette=3, training_forwards=2).palette == 3
    listed: Any = ["fewshot"]
    assert replace(METHODS["zero_shot"], tracks=listed).tracks == frozenset({"fewshot"})


def _no_parameter(task: Task, config: BoltSettings) -> None: ...


def _any_settings(task: Task, settings: Any) -> None: ...


def _type_for_mypy_only(task: "Missing", settings: BoltSettings) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("adapt", [_no_parameter, _any_settings, _type_for_mypy_only])
def test_a_method_that_does_not_state_its_settings_says_what_to_do(adapt: Any) -> None:
    fields = {"name": "mine", "title": "Mine", "paper": None, "adapt": adapt}
    with pytest.raises(ValueError, match="method 'mine' does not say which dataclass its settings are"):
        Method(**fields)
    assert Method(**fields, settings_class=BoltSettings).configure({}) == BoltSettings()


@pytest.mark.slow
@pytest.mark.parametrize("method", [METHODS[name] for name in FEW_SHOT], ids=lambda method: method.name)
def test_work_is_what_the_tower_is_asked_for(method: Method, backbone: Backbone) -> None:
    forward: list[int] = []
    task = make_task(backbone)

    def count(tower: torch.nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if isinstance(tower, ImageTower):
            forward.append(len(inputs[0]))

    def stored_features(view: int) -> Tensor:
        passed = len(forward)
        features_ND = task.support.features(view)
        del forward[passed:]  # a cell reads these features from the store
        return features_ND

    settings = method.configure(quick_settings(method.name))
    hook = register_module_forward_pre_hook(count)
    try:
        method.adapt(replace(task, support=replace(task.support, features=stored_features)), settings)
    finally:
        hook.remove()
    work = method.tower_passes(len(task.support), settings)
    if method.name == "auto":  # the plan counts the costliest candidate
        assert 0 < sum(forward) <= work.forward + work.training
    else:
        assert work.forward + work.training == sum(forward)


def test_a_source_is_fine_tuned_and_the_backbone_is_not(backbone: Backbone) -> None:
    task = make_task(backbone, shots=8)
    curve: list[float] = []
    before = {key: tensor.clone() for key, tensor in backbone.tower.state_dict_open_clip().items()}
    recipe = TrainingRecipe(epochs=8, batch_size=8, learning_rate=1e-3, weight_decay=0.1)
    tensors = finetune_source(
        backbone,
        task.head_CD,
        task.support.labels_N,
        task.support.pixels,
        task.support.order,
        recipe,
        lambda epoch, metrics: curve.append(metrics["train_loss"]),
    )
    assert list(tensors) == list(before)
    assert all(not torch.equal(tensors[key], before[key]) for key in before)
    assert all(torch.equal(backbone.tower.state_dict_open_clip()[key], before[key]) for key in before)
    assert curve[-1] < 0.8 * curve[0]
    tower = backbone.tower.copy(trainable=tensors)
    tower.load_open_clip(tensors)
    features = backbone.encode_images(task.support.pixels(0, torch.arange(4)), tower)
    assert torch.isfinite(task.text_head(features)).all()


IMAGES = 32


@pytest.fixture(scope="module")
def wide() -> Backbone:
    """Return a tower in which, as in ViT-B, products with the tokens take most operations."""
    return random_backbone(width=192, heads=3, layers=2, embed=128, patch_size=4)


def operations(task: Task, name: str, **settings: Any) -> int:
    method = METHODS[name]
    with FlopCounterMode(display=False) as counter:
        method.adapt(task, method.configure(settings))
    return counter.get_total_flops()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [("full_finetune", {}), ("bitfit", {}), ("lora", {}), ("lora_xs", {}), ("vera", {}), ("bolt", {"alphas": (3.0,)})],
)
def test_an_epoch_takes_the_stated_operations(name: str, settings: dict[str, Any], wide: Backbone) -> None:
    task = make_task(wide, shots=8, classes=4, sources=RandomSources(wide))
    with FlopCounterMode(display=False) as counter:
        wide.encode_images(torch.zeros(IMAGES, 3, 32, 32, dtype=torch.uint8))
    one, two = (operations(task, name, epochs=epochs, **settings) for epochs in (1, 2))
    assert (two - one) / counter.get_total_flops() == pytest.approx(METHODS[name].training_forwards, rel=0.12)
