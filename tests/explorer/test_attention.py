"""The Explorer shows models with another attention; what such a model cannot do is said."""

from __future__ import annotations

import numpy as np
import pytest

from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.explorer.app import make_app
from glassgpt.gpt import GPT
from tests.model.test_attention_variants import ALL, make

from .conftest import Client, array


@pytest.mark.slow
@pytest.mark.parametrize("variant", ALL)
def test_every_panel_has_its_numbers(variant: str) -> None:
    gpt = GPT(TorchBackend(make(**ALL[variant])), None, name=variant)
    client = Client(make_app(gpt))
    ids = list(range(5, 17))
    here, trace = client.trace(" ".join(map(str, ids))), gpt.trace(ids)
    path = f"/trace/{here['id']}"
    assert client.get("/tally")["total"] == gpt.config.n_parameters
    weights = array(client.get(f"{path}/patterns", layer=1)["attn.weights"])
    np.testing.assert_allclose(weights / 255, trace.attention[1], atol=2e-3)
    for panel in "salient-heads", "embedding", "lens", "final", "next":
        assert client.get(f"{path}/{panel}", position=5)
    for panel in "neurons", "mlp":
        assert client.get(f"{path}/{panel}", layer=1, position=5)
    assert client.get(f"{path}/scores", layer=1, head=2)
    assert client.get(f"{path}/head", layer=1, head=2, position=5)
    edit = {"kind": "ablate_head", "layer": 1, "head": 2, "how": "zero"}
    found = client.post("/intervene", id=here["id"], edits=[edit])
    assert np.array_equal(array(found["logits"]), gpt.intervene(ids, [edit]).logits)
    answer = client.http.post("/api/v1/generate", json={"ids": ids, "max_new_tokens": 2})
    if gpt.config.is_causal:
        assert answer.text.count('"token"') == 2
    else:
        assert "cannot continue one" in answer.text
