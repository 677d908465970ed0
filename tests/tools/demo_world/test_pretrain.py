"""The pre-training of the demo's CLIP: repeatable captioned pictures, and a run that can be interrupted."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.warm_process import run_forked
from tools.demo_world.caption_pairs import LATE_SHARES, SHARES, draw_pairs

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_captions_tell_what_the_repeatable_pictures_show() -> None:
    state = torch.random.get_rng_state()
    images, captions = draw_pairs(400, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert images.shape == (400, 32, 32, 3)
    assert len(captions) == 400
    repeated, same = draw_pairs(400, seed=1)
    assert np.array_equal(images, repeated)
    assert captions == same
    assert not np.array_equal(images, draw_pairs(400, seed=2)[0])
    assert all(caption.endswith(".") for caption in captions)
    assert any("aerial" in caption for caption in captions)
    assert any("hand" in caption for caption in captions)


@pytest.mark.parametrize("shares", [SHARES, LATE_SHARES])
def test_shares_add_up(shares: dict[str, float]) -> None:
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_resumed_pretraining_continues_and_writes_loadable_weights(tmp_path: Path) -> None:
    weights, checkpoint = tmp_path / "clip.safetensors", tmp_path / "state.pt"

    def pretrain(images: int) -> str:
        words = ["--out", str(weights), "--images", str(images), "--batch", "64", "--threads", "1"]
        words += ["--checkpoint", str(checkpoint)]
        done = run_forked(words, "from tools.demo_world.pretrain import main; main()", folder=ROOT)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "step 2/2" in pretrain(128)
    assert "step 4/4" in pretrain(256)
    shipped = load_file(ROOT / "grids" / "backbones" / "tiny-clip.safetensors")
    written = load_file(weights)
    assert {name: tensor.shape for name, tensor in written.items()} == {n: t.shape for n, t in shipped.items()}
    assert all(tensor.isfinite().all() for tensor in written.values())
