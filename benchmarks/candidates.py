"""The training steps that ``methods.py`` and ``gpu.py`` time, with random weights. Not a command."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.clip.precision import training_step as as_a_cell
from bolt.clip.tensor_names import layer_norm_names, matrix_module_paths
from bolt.clip.tower import ImageTower, matrix_modules
from bolt.clip.tower_shape import TowerShape
from bolt.methods import METHODS
from bolt.methods.bitfit import bias_names
from bolt.methods.common.adapters import AdapterSettings, attach_to_tower
from bolt.methods.common.composition import Composition, tensors_by_open_clip_name, trainable_composition
from bolt.methods.common.prompts import LearnedPrompts, word_embeddings
from bolt.methods.common.reparametrised import MatrixChange, reparametrised_tower, weight_matrices
from bolt.methods.lora_xs import SingularCore
from bolt.methods.svf import ShiftedMatrix
from bolt.methods.vera import random_projections, scaled_projection
from bolt.protocol import STRICT, Precision
from bolt.spectral.bases import Basis
from bolt.spectral.directions import directions_per_source
from bolt.spectral.spectral_linear import SpectralLinear, attach_coefficients
from bolt.task.task import ClassText, Support, Task

SHAPES = {
    "B/32": TowerShape(224, 32, 768, 12, 12, 3072, 512, "quick_gelu"),
    "B/16": TowerShape(224, 16, 768, 12, 12, 3072, 512, "quick_gelu"),
    "L/14": TowerShape(224, 14, 1024, 24, 16, 4096, 768, "quick_gelu"),
}
CLASSES, SOURCES, TOP_K, RANK, VERA_RANK = 100, 16, 12, 16, 256


class Begun(NamedTuple):
    """What a candidate trains, and its forward pass; ``loss`` of images and labels replaces the usual cross-entropy."""

    forward: Callable[[Tensor], Tensor]
    trained: list[Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Ready:
    """A candidate whose weights are loaded; ``begin`` allocates what it trains, ``update`` is whether it trains."""

    begin: Callable[[], Begun]
    update: bool = True


def training_step(
    begun: Begun,
    shape: TowerShape,
    update: bool = True,
    precision: Precision | None = None,
    deterministic: bool = True,
) -> Callable[[Tensor, Tensor], None]:
    """Return ``step(images, labels)``: forward, loss, backward and, with ``update``, clipping and AdamW.

    By default the loss is the cross-entropy of the features and a random head. On a GPU a step computes with
    deterministic kernels, as cells do, unless ``deterministic`` is false.
    """
    trained = begun.trained
    device = trained[0].device
    head_CD = torch.empty(CLASSES, shape.embed_dim, device=device)
    head_CD = F.normalize(head_CD.normal_(generator=torch.Generator(device).manual_seed(2)), dim=-1)
    optimiser = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)

    def cross_entropy(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        features_BD = F.normalize(begun.forward(images_B3SS).float(), dim=-1)
        return F.cross_entropy(100 * features_BD @ head_CD.T, labels_B)

    loss = begun.loss or cross_entropy

    def step(images_B3SS: Tensor, labels_B: Tensor) -> None:
        with as_a_cell(precision, device) if deterministic else nullcontext():
            optimiser.zero_grad(set_to_none=True)
            loss(images_B3SS, labels_B).backward()
            if update:
                torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
                optimiser.step()

    return step


def random_batch(shape: TowerShape, batch: int, device: str) -> tuple[Tensor, Tensor]:
    """Return random images and labels."""
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(batch, 3, shape.image_size, shape.image_size, generator=generator)
    return images.to(device), torch.randint(CLASSES, (batch,), generator=generator).to(device)


def random_tower(shape: TowerShape, device: str) -> ImageTower:
    """Return a frozen tower with weights of a realistic size."""
    generator = torch.Generator(device).manual_seed(0)
    tower = ImageTower(shape).to(device)
    with torch.no_grad():
        for name, tensor in tower.named_parameters():
            if tensor.ndim > 1:
                tensor.normal_(generator=generator).mul_(tensor[0].numel() ** -0.5)
            else:
                tensor.fill_(float("ln_" in name and name.endswith("weight")))
    return tower.requires_grad_(False)


def random_bases(tower: ImageTower, sources: int) -> tuple[dict[str, Basis], dict[str, Tensor]]:
    """Return orthonormal bases of the rank that this number of sources gives, and small coefficients."""
    device = tower.class_embedding.device
    generator = torch.Generator(device).manual_seed(1)
    bases, start = {}, {}
    for name, linear in matrix_modules(tower).items():
        m, n = linear.weight.shape if name != "proj" else linear.weight.T.shape
        rank = sources * directions_per_source(TOP_K, min(m, n), sources)
        random = (torch.empty(size, rank, device=device).normal_(generator=generator) for size in (m, n))
        bases[name] = Basis(*(torch.linalg.qr(each)[0] for each in random))
        start[name] = 0.05 * torch.empty(rank, device=device).normal_(generator=generator)
    return bases, start


def random_stacks(tower: ImageTower, sources: int) -> dict[str, Tensor]:
    """Return random task vectors: for each tensor of the tower, a matrix with a row of each source."""
    generator = torch.Generator(tower.class_embedding.device).manual_seed(3)
    return {
        name: 1e-3 * torch.randn(sources, tensor.numel(), device=tensor.device, generator=generator)
        for name, tensor in tensors_by_open_clip_name(tower, tower.state_dict_open_clip()).items()
    }


def random_task(tower: ImageTower) -> Task:
    """Return a task of 100 class names.

    The text tower has the same share of CLIP's blocks as the image tower.
    """
    import open_clip  # takes seconds to import
    from open_clip.tokenizer import SimpleTokenizer

    embed, device = tower.shape.embed_dim, tower.class_embedding.device
    whole = next(shape.layers for shape in SHAPES.values() if shape.embed_dim == embed)
    image = {"image_size": 32, "patch_size": 16, "layers": 1, "width": 64}  # open_clip wants one; it is not used
    text = {"width": embed, "heads": embed // 64, "layers": max(1, 12 * tower.shape.layers // whole)}
    model = open_clip.CLIP(embed, image, text, quick_gelu=True)
    backbone = Backbone("random", tower, lambda: model, SimpleTokenizer(), 100.0, (0.5,) * 3, (0.5,) * 3)
    words = ClassText(tuple(f"thing number {number}" for number in range(CLASSES)), ("a photo of a {}.",))
    support = Support(*(torch.zeros(0, dtype=torch.long),) * 2, _no_images, _no_images, _no_images)
    head_CD = backbone.to(device).zero_shot_head(words.class_names, words.templates)
    backbone.text_tower  # noqa: B018  # loads it, before memory is measured
    return Task(backbone, head_CD, support, None, STRICT, "benchmark", 1, text=words)


def _no_images(*arguments: object) -> Tensor:
    raise AssertionError("the benchmark gives the images itself")


class DenseLinear(nn.Module):
    """A rival of ``SpectralLinear``: the graph contains the merged weight, so autograd makes a dense gradient of it."""

    def __init__(self, spectral: SpectralLinear) -> None:
        super().__init__()
        self.weight, self.bias, self.u, self.v = spectral.weight, spectral.bias, spectral.u, spectral.v
        self.coefficients = nn.Parameter(spectral.coefficients.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.u * self.coefficients @ self.v.mT, self.bias)


def limit(tower: ImageTower) -> Ready:
    # With few blocks, every candidate computes the input gradient of the first one, by training the class embedding. In
    # a whole network the first block is one of many, so that to leave its gradient out would save little.
    return Ready(lambda: Begun(tower, [tower.class_embedding.requires_grad_()]), update=False)


def bolt(tower: ImageTower, sources: int = SOURCES) -> Ready:
    bases, start = random_bases(tower, sources)

    def begin() -> Begun:
        spectral, coefficients = attach_coefficients(tower, bases, start)
        spectral.class_embedding.requires_grad_()
        return Begun(spectral, list(coefficients.values()))

    return Ready(begin)


def bolt_rebuilt(tower: ImageTower) -> Ready:
    """Train the coefficients of ``bolt`` in a tower whose matrices are :class:`DenseLinear`."""
    bases, start = random_bases(tower, SOURCES)

    def begin() -> Begun:
        spectral, _ = attach_coefficients(tower, bases, start)
        twin, coefficients = tower.copy(["class_embedding"]), []
        for path in matrix_module_paths(tower.shape.layers).values():
            owner, _, attribute = path.rpartition(".")
            module = DenseLinear(cast(SpectralLinear, spectral.get_submodule(path)))
            setattr(twin.get_submodule(owner), attribute, module)
            coefficients.append(module.coefficients)
        return Begun(twin, [*coefficients])

    return Ready(begin)


def atlas(tower: ImageTower, sources: int = SOURCES) -> Ready:
    stacks = random_stacks(tower, sources)

    def begin() -> Begun:
        ours = trainable_composition(tower, Composition(tensors_by_open_clip_name(tower, stacks), stacks))
        return Begun(ours.encode, list(ours.parameters))

    return Ready(begin)


def compose_by_autograd(
    base: Mapping[str, Tensor], stacks: Mapping[str, Tensor], coefficients_NP: Tensor
) -> dict[str, Tensor]:
    """Return the weights of a ``Composition``, composed by a sum that autograd differentiates.

    The sums are in the base's type. Stacks of another type are converted, and autograd keeps the converted copies for
    its backward pass.
    """
    composed = {}
    for position, (name, stack) in enumerate(stacks.items()):
        rows = zip(coefficients_NP[:, position], stack, strict=True)
        terms = [coefficient * vector.to(base[name].dtype).view(base[name].shape) for coefficient, vector in rows]
        composed[name] = base[name] + sum(terms)
    return composed


def atlas_plain(tower: ImageTower) -> Ready:
    stacks = random_stacks(tower, SOURCES)

    def begin() -> Begun:
        base, path = tensors_by_open_clip_name(tower, stacks), tower.tensor_paths()
        lambdas_NP = torch.zeros(SOURCES, len(stacks), device=tower.class_embedding.device, requires_grad=True)

        def encode(images: Tensor) -> Tensor:
            composed = compose_by_autograd(base, stacks, lambdas_NP)
            return cast(Tensor, torch.func.functional_call(tower, {path[n]: t for n, t in composed.items()}, (images,)))

        return Begun(encode, [lambdas_NP])

    return Ready(begin)


def trainable(module: nn.Module) -> list[Tensor]:
    return [tensor for tensor in module.parameters() if tensor.requires_grad]


def lora(tower: ImageTower, dora: bool = False) -> Ready:
    def begin() -> Begun:
        twin = tower.copy()
        attach_to_tower(twin, AdapterSettings(), dora, "benchmark")
        adapters = trainable(twin)
        twin.class_embedding.requires_grad_()
        return Begun(twin, adapters)

    return Ready(begin)


def lora_peft(tower: ImageTower) -> Ready:
    """Attach peft to open_clip's own vision transformer, whose fused attention is one target."""
    from open_clip.transformer import QuickGELU, VisionTransformer
    from peft import LoraConfig, get_peft_model

    shape = tower.shape
    visual = VisionTransformer(
        shape.image_size, shape.patch_size, shape.width, shape.layers, shape.heads, shape.mlp_width / shape.width,
        output_dim=shape.embed_dim, act_layer=QuickGELU,
    ).to(tower.class_embedding.device)  # fmt: skip
    visual.load_state_dict(tower.state_dict_open_clip())
    visual.requires_grad_(False)

    def begin() -> Begun:
        adapted = get_peft_model(visual, LoraConfig(r=16, lora_alpha=16, target_modules=["attn", "c_fc", "c_proj"]))
        adapters = trainable(adapted)
        visual.class_embedding.requires_grad_()
        return Begun(adapted, adapters)

    return Ready(begin)


def part_of_the_tower(tower: ImageTower, names: Iterable[str]) -> Ready:
    def begin() -> Begun:
        twin = tower.copy(trainable=names)
        return Begun(twin, trainable(twin))

    return Ready(begin)


def reparametrised(tower: ImageTower, change: Callable[[dict[str, Tensor]], Mapping[str, MatrixChange]]) -> Ready:
    """Train W + change for every weight matrix W of the tower."""
    changes = change(weight_matrices(tower))

    def begin() -> Begun:
        trainable = reparametrised_tower(tower, changes)
        return Begun(trainable.encode, list(trainable.parameters))

    return Ready(begin)


def svf(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    return {name: ShiftedMatrix.of(weight) for name, weight in matrices.items()}


def lora_xs(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    return {name: SingularCore.of(weight, RANK, float(RANK)) for name, weight in matrices.items()}


def vera(matrices: dict[str, Tensor]) -> dict[str, MatrixChange]:
    a, b = random_projections((weight.shape for weight in matrices.values()), VERA_RANK, 0)
    return {name: scaled_projection(weight, a, b, 0.1) for name, weight in matrices.items()}


def with_text(tower: ImageTower, name: str) -> Ready:
    """Train what the method ``name`` trains: ``maple``, ``promptsrc`` or ``clipfit``."""
    task, method = random_task(tower), importlib.import_module(f"bolt.methods.{name}")

    def begin() -> Begun:
        model, _ = method.trainable(task, METHODS[name].settings_class())

        def cross_entropy(images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(model.classify(model.encode(images)), labels)

        return Begun(model.encode, list(model.parameters), model.loss or cross_entropy)

    return Ready(begin)


def prompts_alone(tower: ImageTower) -> Ready:
    """Train context words through the text tower, as CoOp, KgCoOp and TPT do; numbers replace the image features."""
    task = random_task(tower)

    def begin() -> Begun:
        prompts = LearnedPrompts(task.backbone, task.class_text.class_names, 4)
        context = word_embeddings(task.backbone, "a photo of a").clone().requires_grad_()

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            features = images.flatten(1)[:, : tower.shape.embed_dim]
            return F.cross_entropy(100 * F.normalize(features, dim=-1) @ prompts.encode(context).T, labels)

        return Begun(tower, [context], loss)

    return Ready(begin)


CANDIDATES: dict[str, Callable[[ImageTower], Ready]] = {
    "limit": limit,
    "bolt": bolt,
    "bolt, dense": bolt_rebuilt,
    "atlas": atlas,
    "atlas, plain": atlas_plain,
    "lora": lora,
    "lora, peft": lora_peft,
    "dora": lambda tower: lora(tower, dora=True),
    "bitfit": lambda tower: part_of_the_tower(tower, bias_names(tower.state_dict_open_clip())),
    "svf": lambda tower: reparametrised(tower, svf),
    "lora_xs": lambda tower: reparametrised(tower, lora_xs),
    "vera": lambda tower: reparametrised(tower, vera),
    "layer_norm": lambda tower: part_of_the_tower(tower, layer_norm_names(tower.state_dict_open_clip())),
    "kgcoop": prompts_alone,
    "clipfit": lambda tower: with_text(tower, "clipfit"),
    "maple": lambda tower: with_text(tower, "maple"),
    "promptsrc": lambda tower: with_text(tower, "promptsrc"),
    "full_finetune": lambda tower: part_of_the_tower(tower, tower.state_dict_open_clip()),
}
"""The candidates; a name with a comma is a rival of the method before the comma."""
