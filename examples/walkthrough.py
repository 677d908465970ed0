# %% [markdown]
# # The linear algebra of BOLT in figures
#
# Builds an adapted model in steps: task vectors, an orthonormal basis, pooled coefficients, and their training. Every
# step uses the library's functions, the tiny CLIP and drawn characters. Run the file as a script, or cell by cell in an
# editor that supports `# %%`:
#
#     python examples/walkthrough.py [FOLDER]       # writes its figures to FOLDER, by default docs/images
#
# docs/walkthrough.md explains the figures.

# %% The CLIP, and one model fine-tuned on each task
from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import torch
from adapt_to_my_images import DIGITS, PROMPTS, TINY, draw
from torch.nn import functional as F

import bolt
from bolt.clip.tensor_names import matrix_names
from bolt.spectral.bases import diagonal_coefficients, orthonormal_basis
from bolt.spectral.directions import top_directions, truncate_directions
from bolt.spectral.spectral_linear import attach_coefficients, merge_coefficients
from bolt.spectral.task_vector_sum import add_task_vector, leave_out_mean

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "docs" / "images"
TASKS = {
    "capitals": {letter.lower(): letter for letter in "ABDEGHKR"},
    "small letters": {letter: letter for letter in "abdeghkr"},
    "more capitals": {letter.lower(): letter for letter in "CFJLMNPQ"},
    "digits": DIGITS,
}
TARGET, TOP_K = "digits", 12
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7"]  # Okabe and Ito's, which colour-blind readers tell apart
mpl.rcParams.update({"figure.dpi": 80, "font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
torch.set_num_threads(1)
FOLDER.mkdir(parents=True, exist_ok=True)

backbone = bolt.load_backbone(TINY / "tiny-clip.json", TINY / "tiny-clip.safetensors", quick_gelu=False)
with tempfile.TemporaryDirectory() as folder:
    for task, characters in TASKS.items():
        images, labels = draw(characters, 16, task)
        prompts = PROMPTS if task == TARGET else ["a picture of the letter {}."]
        settings = {"prompts": prompts, "mirror": False, "learning_rate": 5e-4, "epochs": 10, "name": task}
        bolt.adapt(backbone, images, labels, list(characters), method="full_finetune", **settings).save(
            Path(folder, task), "huggingface"
        )
    sources = bolt.load_sources(folder, backbone)
    vectors = {task: sources.task_vector(task) for task in TASKS}

# %% 1. A task vector is what fine-tuning added to the weights
frozen = backbone.tower.state_dict_open_clip()
matrices = matrix_names(frozen)
relative_norms = [[float(vectors[task][name].norm() / frozen[name].norm()) for name in matrices] for task in TASKS]
flat = F.normalize(torch.stack([torch.cat([v[name].flatten() for name in matrices]) for v in vectors.values()]), dim=-1)
cosines = flat @ flat.T

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), width_ratios=[2.4, 1], layout="constrained")
for row, (task, colour) in enumerate(zip(TASKS, COLOURS, strict=True)):
    left.plot(relative_norms[row], "o-", color=colour, label=task, markersize=4)
left.set(
    xlabel="weight matrix, from the first block to the projection",
    ylabel="task vector / weights (norms)",
    ylim=(0, None),
)
left.legend(frameon=False, ncols=2)
shown = right.imshow(cosines, cmap="cividis", vmin=0, vmax=1)
right.set(xticks=range(4), yticks=range(4), title="cosine of two task vectors")
right.set_xticklabels(list(TASKS), rotation=30, ha="right")
right.set_yticklabels(list(TASKS))
for row in range(4):
    for column in range(4):
        value = float(cosines[row, column])
        right.text(column, row, f"{value:.2f}", ha="center", va="center", color="black" if value > 0.5 else "white")
figure.savefig(FOLDER / "walkthrough-1-task-vectors.png")

# %% 2. A few singular directions carry most of a task vector
matrix = "transformer.resblocks.2.mlp.c_fc.weight"
m, n = frozen[matrix].shape
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for (task, vector), colour in zip(vectors.items(), COLOURS, strict=True):
    energy = torch.linalg.svdvals(vector[matrix]).square()
    axes.plot(range(1, len(energy) + 1), (energy.cumsum(0) / energy.sum()), color=colour, label=task)
axes.axvline(TOP_K, color="black", linewidth=1, linestyle="--")
axes.text(TOP_K + 1, 0.06, f"{TOP_K} directions are kept")
axes.set(xlabel=f"singular directions of a {m} x {n} task vector", ylabel="share of its squared norm", ylim=(0, 1.02))
axes.legend(frameon=False, loc="lower right")
figure.savefig(FOLDER / "walkthrough-2-spectra.png")

# %% 3. Directions of several sources overlap; the columns of their polar factor are orthogonal
rest = [task for task in TASKS if task != TARGET]
directions = truncate_directions([top_directions(vectors[task][matrix], TOP_K) for task in rest], TOP_K)
stacked = torch.cat([direction.u for direction in directions], dim=1)
basis = orthonormal_basis(directions, (m, n))
figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
for axes, u, title in zip(panels, (stacked, basis.u), ("directions side by side", "their polar factor"), strict=True):
    shown = axes.imshow((u.T @ u).abs(), cmap="cividis", vmin=0, vmax=1)
    for edge in range(TOP_K, u.shape[1], TOP_K):
        axes.axhline(edge - 0.5, color="white", linewidth=0.8)
        axes.axvline(edge - 0.5, color="white", linewidth=0.8)
    centres = [TOP_K * row + TOP_K / 2 for row in range(len(rest))]
    axes.set(title=title, xticks=centres, yticks=centres)
    axes.set_xticklabels(rest)
    axes.set_yticklabels(rest, rotation=90, va="center")
figure.colorbar(shown, ax=panels, label="|cosine| of two columns of U")
figure.savefig(FOLDER / "walkthrough-3-orthogonal.png")

# %% 4. Pooled coefficients: the mean task vector, seen in the basis. Leaving the target out is one subtraction
total = torch.zeros(m, n, dtype=torch.float64)
for vector in vectors.values():
    add_task_vector(total, vector[matrix])
without = torch.zeros(m, n, dtype=torch.float64)
for task in rest:
    add_task_vector(without, vectors[task][matrix])
mean = leave_out_mean(total, [vectors[TARGET][matrix]], len(vectors))
assert torch.equal(mean, leave_out_mean(without, [], len(rest))), "bit for bit, as if the target had never been there"
pooled = diagonal_coefficients(basis, mean)
singular = torch.cat([direction.s for direction in directions])
figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
for row, (task, colour) in enumerate(zip(rest, COLOURS, strict=False)):
    columns = range(TOP_K * row, TOP_K * (row + 1))
    axes.bar(columns, pooled[columns.start : columns.stop], color=colour, label=task)
    axes.plot(columns, singular[columns.start : columns.stop] / len(rest), "_", color="black", markersize=9)
axes.plot([], [], "_", color="black", markersize=9, label="singular value / number of sources")
axes.axhline(0, color="black", linewidth=0.8)
axes.set(xlabel="column of the basis, by source", ylabel="pooled coefficient")
axes.legend(frameon=False, ncols=2)
figure.savefig(FOLDER / "walkthrough-4-pooled.png")

# %% 5. The start is scaled, then only the coefficients are trained
means, bases = {}, {}
for name in matrices:
    total = torch.zeros_like(frozen[name], dtype=torch.float64)
    for vector in vectors.values():
        add_task_vector(total, vector[name])
    means[name] = leave_out_mean(total, [vectors[TARGET][name]], len(vectors))
    found = [top_directions(vectors[task][name], TOP_K) for task in rest]
    bases[name] = orthonormal_basis(found, tuple(frozen[name].shape))
starts = {name: diagonal_coefficients(bases[name], means[name]) for name in matrices}
tower, coefficients = attach_coefficients(backbone.tower, bases, starts)
head = backbone.zero_shot_head(list(DIGITS), PROMPTS)
support, support_labels = draw(DIGITS, 8, "support")
unseen, unseen_labels = draw(DIGITS, 40, "unseen")
probe = bolt.adapt(backbone, support, support_labels, list(DIGITS), method="zero_shot", prompts=PROMPTS)
few, many = (backbone.normalise(probe.pixels(drawn)) for drawn in (support, unseen))
few_labels, many_labels = torch.tensor(support_labels), torch.tensor(unseen_labels)


def accuracy(batch: torch.Tensor, answers: torch.Tensor) -> float:
    """Return the accuracy in per cent of the tower with its present coefficients."""
    with torch.inference_mode():
        features = F.normalize(merge_coefficients(tower)(batch), dim=-1)
    return 100 * float(((features @ head.T).argmax(dim=-1) == answers).float().mean())


def rescale(alpha: float) -> None:
    """Set the coefficients to alpha times the pooled coefficients."""
    with torch.no_grad():
        for name, coefficient in coefficients.items():
            coefficient.copy_(alpha * starts[name])


alphas, swept = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0], []
for alpha in alphas:
    rescale(alpha)
    swept.append((accuracy(few, few_labels), accuracy(many, many_labels)))
best = alphas[max(range(len(alphas)), key=lambda at: swept[at][0])]
rescale(best)
curve = [(accuracy(few, few_labels), accuracy(many, many_labels))]
optimiser = torch.optim.AdamW(coefficients.values(), lr=1e-2, weight_decay=0.0)
for _ in range(30):
    logits = backbone.logit_scale * F.normalize(tower(few), dim=-1) @ head.T
    optimiser.zero_grad()
    F.cross_entropy(logits, few_labels).backward()
    optimiser.step()
    curve.append((accuracy(few, few_labels), accuracy(many, many_labels)))

figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), sharey=True, layout="constrained")
for axes, xs, ys in ((left, alphas, swept), (right, range(len(curve)), curve)):
    axes.plot(
        xs, [y for y, _ in ys], "o-", color=COLOURS[1], label="8 of each digit, which it learns from", markersize=4
    )
    axes.plot(xs, [y for _, y in ys], "s-", color=COLOURS[0], label="drawings not seen", markersize=4)
left.axvline(best, color="black", linewidth=1, linestyle="--")
left.set(xlabel="alpha: start = alpha x pooled coefficients (0 is zero-shot)", ylabel="accuracy (%)", ylim=(0, 102))
right.set(
    xlabel=f"steps of training {sum(c.numel() for c in coefficients.values())} coefficients, from alpha = {best:g}"
)
left.legend(frameon=False, loc="lower right")
figure.savefig(FOLDER / "walkthrough-5-training.png")
print(f"zero-shot {swept[0][1]:.1f} %, start at alpha = {best:g} {curve[0][1]:.1f} %, trained {curve[-1][1]:.1f} %")
