"""Every value of a response is the one that Python computes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import glassgpt
from glassgpt.explorer.app import make_app
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateHead, Patch
from glassgpt.inspect.edits.edit_data import EDIT_KINDS, edit_fields
from glassgpt.inspect.edits.intervene import kl_per_token
from glassgpt.inspect.traces.lens_column import lens_logits_at
from tests.conftest import SHIPPED
from tests.explorer.conftest import API, TEXT, Client, array, refusal

# JSON carries a float32 exactly, so equal means equal. Appended columns are computed through the cache, in
# products of other shapes: a few roundings of float32 apart (measured: 2e-6 of the largest).
APPENDED = 2e-5


def test_the_model_is_described(client: Client, gpt: GPT) -> None:
    found = client.get("/model")
    assert [model["name"] for model in found["models"]] == [SHIPPED, "disturbed"]
    config = found["models"][0]["config"]
    assert config == {name: getattr(gpt.config, name) for name in config}
    assert found["models"][0]["parameters"] == gpt.config.n_parameters
    assert found["limits"] == {"tokens": min(1024, gpt.config.n_positions), "traces": 32}
    assert found["version"] == glassgpt.__version__


def test_the_vocabulary_is_every_tokens_text(client: Client, gpt: GPT) -> None:
    texts = client.get("/vocabulary", model=0)["texts"]
    assert len(texts) == gpt.config.vocab_size
    for i in range(0, len(texts), 37):
        exact = gpt.decode([i])
        # Bytes that are no whole character are shown as such.
        assert texts[i] == exact or ("\ufffd" in exact and re.search(r"<[0-9a-f]{2}>", texts[i]))
    assert not any("\ufffd" in text for text in texts)


def test_a_trace_is_the_python_trace(client: Client, gpt: GPT) -> None:
    found, trace = client.trace(), gpt.trace(TEXT)
    assert [token["id"] for token in found["tokens"]] == trace.tokens == gpt.encode(TEXT)
    assert "".join(token["text"] for token in found["tokens"]) == found["text"] == TEXT
    assert bytes(byte for token in found["tokens"] for byte in token["bytes"]) == TEXT.encode()
    assert found["token_loss"][0] is None
    for name in ("p", "rank", "entropy"):
        here = np.array([each[name] for each in found["token_loss"][1:]], np.float32)
        assert np.array_equal(here, getattr(trace.token_loss, name)[1:])
    lens = trace.lens()
    assert found["lens"]["ids"] == lens.ids.tolist()
    assert found["lens"]["texts"] == lens.texts.tolist()
    assert np.array_equal(np.float32(found["lens"]["p"]), lens.p)
    assert np.array_equal(np.float32(found["norms"]), trace.norms)


def test_words_carry_their_merges(client: Client, gpt: GPT) -> None:
    found = client.trace("unbelievable robots 🙂")
    assert [word["text"] for word in found["words"]] == [w.text for w in gpt.tokenizer.explain(found["text"])]
    for number, word in enumerate(found["words"]):
        own = [token for token in found["tokens"] if token["word"] == number]
        assert len(own) == word["last"] - word["first"] + 1 == len(word["merges"][-1])
        assert len(word["merges"][0]) == len(word["text"].encode())
        if word["text"].isascii():
            assert all("".join(state) == word["text"] for state in word["merges"])
    assert "<f0>" in found["words"][-1]["merges"][0]


def test_ids_that_the_text_would_not_give_are_words_of_their_own(client: Client, gpt: GPT) -> None:
    ids = [*gpt.encode("A rob"), *gpt.encode("b"), *gpt.encode("o")]
    found = client.post("/trace", ids=ids)
    assert [token["id"] for token in found["tokens"]] == ids
    assert found["words"][-1]["first"] == found["words"][-1]["last"] == len(ids) - 1


def test_an_empty_text_is_the_beginning_of_a_document(client: Client, gpt: GPT) -> None:
    assert [token["id"] for token in client.trace("")["tokens"]] == [gpt.tokenizer.eot_id]


def test_appending_equals_a_fresh_trace(client: Client, gpt: GPT) -> None:
    ids = gpt.encode(TEXT)
    here = client.trace()
    for token in gpt.encode(" by human beings"):
        here = client.post(f"/trace/{here['id']}/append", token=token)
        ids.append(token)
        assert [each["id"] for each in here["tokens"]] == ids
    fresh = gpt.trace(ids)
    assert here["lens"]["ids"] == fresh.lens().ids.tolist()
    for found, expected in (
        (here["lens"]["p"], fresh.lens().p),
        (here["norms"], fresh.norms),
        ([each["p"] for each in here["token_loss"][1:]], fresh.token_loss.p[1:]),
    ):
        assert np.abs(np.float32(found) - expected).max() <= APPENDED * np.abs(expected).max()
    logits = array(client.get(f"/trace/{here['id']}/next", position=len(ids) - 1)["logits"])
    assert np.abs(logits - fresh.logits[-1]).max() <= APPENDED * np.abs(fresh.logits[-1]).max()
    head = client.get(f"/trace/{here['id']}/head", layer=3, head=2, position=len(ids) - 1)
    assert np.abs(np.float32(head["attn.weights"]) - fresh.attention[3, 2][-1]).max() <= APPENDED


def test_branches_of_one_text_do_not_mix(client: Client, gpt: GPT) -> None:
    start = client.trace("Two roads")
    left, right = (client.post(f"/trace/{start['id']}/append", token=token) for token in (11, 260))
    again = client.post(f"/trace/{left['id']}/append", token=500)
    fresh = gpt.trace([*gpt.encode("Two roads"), 11, 500])
    assert np.abs(np.float32(again["norms"]) - fresh.norms).max() <= APPENDED * fresh.norms.max()
    assert left["id"] != right["id"]


def test_patterns_are_the_attention(client: Client, gpt: GPT) -> None:
    id, trace = client.trace()["id"], gpt.trace(TEXT)
    for layer in range(gpt.config.n_layer):
        found = array(client.get(f"/trace/{id}/patterns", layer=layer)["attn.weights"])
        assert np.array_equal(found, np.rint(255 * trace[f"h.{layer}.attn.weights"]))


def test_a_head_step_by_step(client: Client, gpt: GPT) -> None:
    id, trace = client.trace()["id"], gpt.trace(TEXT)
    layer, head, token = 2, 1, 3
    found = client.get(f"/trace/{id}/head", layer=layer, head=head, position=token)
    expected = {
        "resid_pre": trace.residual[layer][token],
        "ln_1": trace.ln_1[layer][token],
        "attn.q": trace.attn.q[layer, head][token],
        "attn.k": trace.attn.k[layer, head],
        "attn.v": trace.attn.v[layer, head],
        "attn.scores": trace.attn.scores[layer, head][token],
        "attn.scaled": trace.attn.scaled[layer, head][token],
        "attn.weights": trace.attn.weights[layer, head][token],
        "attn.z": trace.attn.z[layer, head][token],
        "attn.merged": trace.attn.merged[layer][token],
        "attn.proj": trace.attn.proj[layer][token],
        "resid_mid": trace.resid_mid[layer][token],
    }
    for name, values in expected.items():
        assert np.array_equal(np.float32(found[name]), values), name
    seen = token + 1
    assert found["attn.masked"][:seen] == found["attn.scaled"][:seen]
    assert found["attn.masked"][seen:] == [None] * (len(trace) - seen)
    assert sum(found["unmasked"]) == pytest.approx(1, abs=1e-6)
    assert min(found["unmasked"]) > 0
    assert set(found) == {*expected, "attn.masked", "unmasked"}


def test_an_mlp_step_by_step(client: Client, gpt: GPT) -> None:
    id, trace = client.trace()["id"], gpt.trace(TEXT)
    found = client.get(f"/trace/{id}/mlp", layer=1, position=5)
    expected = {
        "resid_mid": trace.resid_mid[1],
        "ln_2": trace.ln_2[1],
        "mlp.fc": trace.mlp.fc[1],
        "mlp.gelu": trace.mlp.gelu[1],
        "mlp.proj": trace.mlp.proj[1],
        "resid_post": trace.resid_post[1],
    }
    assert set(found) == set(expected)
    for name, values in expected.items():
        assert np.array_equal(np.float32(found[name]), values[5]), name


def test_next_is_the_whole_distribution(client: Client, gpt: GPT) -> None:
    id, trace = client.trace()["id"], gpt.trace(TEXT)
    for token in range(len(trace)):
        found = array(client.get(f"/trace/{id}/next", position=token)["logits"])
        assert np.array_equal(found, trace.logits[token])
    p = np.exp(found - found.max(), dtype=np.float64)
    best = np.argsort(-p)[:10]
    assert [gpt.decode([i]) for i in best] == [text for text, _ in gpt.next(TEXT)]
    assert p[best] / p.sum() == pytest.approx([p for _, p in gpt.next(TEXT)], rel=1e-4)


def test_the_tally_adds_up(client: Client, gpt: GPT) -> None:
    found = client.get("/tally")
    assert sum(row["count"] for row in found["rows"]) == found["total"] == gpt.config.n_parameters
    assert sum(row["count"] for row in found["illustrated"]) == found["illustrated_total"] == 124_410_624
    assert sum(row["published"] for row in found["illustrated"]) == 124_439_808


def test_two_models_on_one_text(client: Client, gpt: GPT, other: GPT) -> None:
    found = client.post("/compare", text=TEXT, a={"model": 0}, b={"model": 1})
    a, b = gpt.trace(TEXT), other.trace(TEXT)
    assert found["a"]["model"] == 0
    assert found["b"]["lens"]["ids"] == b.lens().ids.tolist()

    def log_p(logits: np.ndarray) -> np.ndarray:
        x = logits.astype(np.float64)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    before, after = log_p(a.logits), log_p(b.logits)
    kl = (np.exp(before) * (before - after)).sum(-1)
    assert found["kl"] == pytest.approx(kl, rel=1e-6, abs=1e-9)
    assert min(found["kl"]) > 0
    assert found["p_difference"][0] is None
    assert np.array_equal(np.float32(found["p_difference"][1:]), (b.token_loss.p - a.token_loss.p)[1:])


def test_a_text_that_was_appended_to_is_compared_and_edited(client: Client, gpt: GPT, other: GPT) -> None:
    """Its logits come in parts."""
    ids = [*gpt.encode(TEXT), 11, 260]
    here = client.trace()
    for token in ids[-2:]:
        here = client.post(f"/trace/{here['id']}/append", token=token)
    kl = client.post("/compare", ids=ids, a={"model": 0}, b={"model": 1})["kl"]
    assert kl == pytest.approx(kl_per_token(gpt.trace(ids), other.trace(ids)), rel=1e-3, abs=1e-6)
    edit = {"kind": "ablate_mlp", "layer": 0, "how": "zero"}
    edited = client.post("/intervene", id=here["id"], edits=[edit])["kl_per_token"]
    after = gpt.intervene(ids, [edit])
    assert edited == pytest.approx(after.kl_per_token, rel=1e-3, abs=1e-6)


def test_a_model_compared_with_itself_is_the_same(client: Client) -> None:
    found = client.post("/compare", text=TEXT, a={"model": 0}, b={"model": 0})
    assert found["kl"] == [0] * len(found["kl"])
    assert set(found["p_difference"][1:]) == {0}


def test_generated_tokens_are_those_of_generate(client: Client, gpt: GPT) -> None:
    ids = gpt.encode(TEXT)
    settings = {
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 0.95,
        "min_p": 0.01,
        "seed": 3,
        "max_new_tokens": 12,
    }
    with client.http.stream("POST", f"{API}/generate", json={"ids": ids, **settings}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    expected = gpt.generate(ids, **settings)
    *tokens, last = events
    assert last == {"done": True, "finish_reason": "length", "seed": 3}
    assert [event["token"] for event in tokens] == expected.tokens
    assert [event["text"] for event in tokens] == [gpt.decode([token]) for token in expected.tokens]
    assert np.log([event["p"] for event in tokens]) == pytest.approx(expected.logprobs, abs=1e-5)


def test_edits_hold_while_text_is_generated(client: Client, gpt: GPT) -> None:
    ids = gpt.encode(TEXT)
    other = client.post("/trace", text="The dog ran to the")
    edits = [
        {"kind": "ablate_head", "layer": 1, "head": 2},
        {"kind": "patch", "step": "h.0.resid_post", "source": other["id"], "positions": [1]},
    ]
    body = {"ids": ids, "edits": edits, "temperature": 0, "max_new_tokens": 6}
    with client.http.stream("POST", f"{API}/generate", json=body) as answer:
        *tokens, _ = [json.loads(line[6:]) for line in answer.iter_lines() if line]
    parsed = [AblateHead(1, 2), Patch("h.0.resid_post", "The dog ran to the", positions=(1,))]
    expected = gpt.generate(ids, edits=parsed, temperature=0, max_new_tokens=6)
    assert [event["token"] for event in tokens] == expected.tokens
    assert expected.tokens != gpt.generate(ids, temperature=0, max_new_tokens=6).tokens
    missing = client.http.post(f"{API}/generate", json={**body, "edits": [{**edits[1], "source": "0" * 16}]})
    assert missing.status_code == 404


def test_a_client_that_disconnects_ends_the_generation(gpt: GPT) -> None:
    body = json.dumps({"ids": [1, 2], "max_new_tokens": 1000, "temperature": 1}).encode()
    asked = [{"type": "http.request", "body": body, "more_body": False}]
    written: list[bytes] = []
    gone = anyio.Event()

    async def receive() -> Any:
        if asked:
            return asked.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        written.append(message.get("body", b""))
        if len(written) == 5:
            gone.set()

    scope = {
        "type": "http",
        "method": "POST",
        "path": f"{API}/generate",
        "raw_path": f"{API}/generate".encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    anyio.run(make_app(gpt), scope, receive, send)
    assert 4 < len(written) < 100
    assert written[1].startswith(b"data: {")


def test_checkpoints_of_a_run(gpt: GPT, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    from glassgpt.files import file_crc32
    from glassgpt.train.checkpoint.run_folder import checkpoint_path
    from glassgpt.weights.run_checkpoint import STATE

    run = tmp_path / "run"
    weights = gpt.backend.model.state_dict()
    for step in (10, 20):
        folder = checkpoint_path(run, step)
        folder.mkdir(parents=True)
        save_file(
            {f"model.{name}": x for name, x in weights.items()},
            folder / STATE,
            {"step": str(step), "scaler": "{}", "config": json.dumps(gpt.config.to_dict())},
        )
        done = {"bytes": (folder / STATE).stat().st_size, "crc32": file_crc32(folder / STATE)}
        (folder / "DONE").write_text(json.dumps(done))
    save_file(weights, run / "model.safetensors", {"format": "pt"})
    (run / "config.json").write_text(json.dumps(gpt.config.to_dict()))
    gpt.tokenizer.save(run)
    loaded = glassgpt.load(run, device="cpu", dtype="float32")
    run_client = Client(make_app(loaded))
    assert [each["step"] for each in run_client.get("/model")["checkpoints"]] == [10, 20]
    now, then = run_client.trace(), run_client.trace(checkpoint=10)
    assert now["lens"] == then["lens"]
    assert now["id"] != then["id"]
    found = run_client.post("/compare", text=TEXT, a={"checkpoint": 10}, b={"checkpoint": 20})
    assert found["kl"] == [0] * len(found["kl"])
    status, message, field = run_client.refused("POST", f"{API}/trace", json={"text": TEXT, "checkpoint": 11})
    assert (status, field) == (404, "checkpoint")
    assert "10, 20" in message


def test_a_model_without_a_tokenizer_shows_ids() -> None:
    import torch

    from glassgpt.backends.torch.backend import TorchBackend
    from glassgpt.config import Config
    from glassgpt.model import GPT2

    torch.manual_seed(0)
    config = Config(vocab_size=3, n_positions=11, n_embd=12, n_layer=2, n_head=3)
    bare = GPT(TorchBackend(GPT2(config).requires_grad_(False)), None, name="bare")
    here = Client(make_app(bare))
    assert here.get("/vocabulary")["texts"] == ["0", "1", "2"]
    found = here.trace("0 1, 2 2")
    assert [token["id"] for token in found["tokens"]] == [0, 1, 2, 2]
    assert found["text"] == "0 1 2 2"
    for text in ("cat", "0 3", "", "0 " * 12, "-1", "1.5", "¹"):
        status, _, field = refusal(here.http.post(f"{API}/trace", json={"text": text}))
        assert (status, field) == (422, "text"), text


def test_no_edits_change_nothing(client: Client) -> None:
    found = client.post("/intervene", id=client.trace()["id"], edits=[])
    assert found["logits"] == found["logits_before"]
    assert found["kl"] == 0
    assert set(found["kl_per_token"]) == {0}
    assert found["changes"] == []
    assert found["lens"] == client.trace()["lens"]


@pytest.mark.parametrize(
    "edit",
    [
        {"kind": "ablate_head", "layer": 1, "head": 2, "how": "zero"},
        {"kind": "ablate_head", "layer": 1, "head": 2, "how": "mean", "positions": [2, 3]},
        {"kind": "ablate_neuron", "layer": 3, "neuron": 300, "how": "zero"},
        {"kind": "ablate_attention", "layer": 0, "how": "mean"},
        {"kind": "ablate_mlp", "layer": 2, "how": "zero"},
        {"kind": "ablate_block", "layer": 1, "how": "zero"},
        {"kind": "steer_token", "layer": 2, "token": 260, "strength": 0.5},
    ],
)
def test_an_edit_does_what_python_does(client: Client, gpt: GPT, edit: dict[str, object]) -> None:
    found = client.post("/intervene", id=client.trace()["id"], edits=[edit], position=6)
    expected = gpt.intervene(TEXT, [edit], position=6)
    assert np.array_equal(array(found["logits"]), expected.logits)
    assert np.array_equal(array(found["logits_before"]), expected.logits_before)
    assert found["kl"] == pytest.approx(expected.kl)
    assert found["kl"] > 0
    assert np.array_equal(np.float32(found["kl_per_token"]), expected.kl_per_token)
    assert [each["id"] for each in found["changes"]] == [each.id for each in expected.top_changes(10)]
    assert found["lens"]["ids"] == expected.lens().ids.tolist()


def test_a_whole_patch_is_the_other_text(client: Client, gpt: GPT) -> None:
    here, there = client.trace("The cat sat on the"), client.trace("The dog ran to the")
    assert len(here["tokens"]) == len(there["tokens"])
    edit = {"kind": "patch", "step": "h.1.resid_post", "source": there["id"]}
    found = client.post("/intervene", id=here["id"], edits=[edit])
    assert np.array_equal(array(found["logits"]), gpt.trace("The dog ran to the").logits[-1])


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "attention_rollout"])
def test_attribution_to_tokens_is_pythons(client: Client, gpt: GPT, method: str) -> None:
    body = {"id": client.trace()["id"], "position": 5, "target": 260, "method": method}
    found, expected = client.post("/attribute", **body), gpt.attribute(TEXT, 260, method, 5)
    assert found["scores"] == pytest.approx(expected.scores.tolist(), rel=1e-4, abs=1e-6)
    assert (found["convergence_delta"] is None) == (method != "integrated_gradients")
    assert len(found["scores"]) == len(client.trace()["tokens"])


def test_direct_attribution_sums_to_the_logit(client: Client, gpt: GPT) -> None:
    method = "direct_logit_attribution"
    found = client.post("/attribute", id=client.trace()["id"], position=5, target=260, method=method)
    assert np.array_equal(np.float32(found["heads"]), gpt.attribute(TEXT, 260, method, 5).heads)
    total = found["embedding"] + np.sum(found["heads"]) + np.sum(found["mlps"]) + found["biases"]
    assert total == pytest.approx(found["total"], abs=1e-4)
    assert found["total"] == pytest.approx(gpt.trace(TEXT).logits[5, 260], abs=1e-4)


def test_the_schema_of_an_edit_is_its_dataclass(client: Client) -> None:
    schemas = client.get("/openapi.json")["components"]["schemas"]
    for kind, edit in EDIT_KINDS.items():
        found = schemas[edit.__name__]
        fields = edit_fields(edit)
        assert list(found["properties"]) == ["kind", *fields]
        assert found["required"] == ["kind", *(name for name, each in fields.items() if each.required)]
        assert found["properties"]["kind"]["const"] == kind


def test_a_batch_is_its_requests(client: Client) -> None:
    id = client.trace()["id"]
    wanted = [
        f"/trace/{id}/head?layer=1&head=2&position=3",
        f"/trace/{id}/mlp?layer=99&position=3",
        f"/trace/{id}/neurons?layer=1&position=3",
        "/nothing",
        "/generate {}",
        '/batch {"requests":["/model"]}',
        "/model",
    ]
    found = client.post("/batch", requests=wanted)
    assert [part["status"] for part in found] == [200, 422, 200, 404, 404, 404, 200]
    assert found[0]["body"] == client.get(f"/trace/{id}/head", layer=1, head=2, position=3)
    assert found[1]["body"]["error"]["field"] == "layer"
    assert found[2]["body"] == client.get(f"/trace/{id}/neurons", layer=1, position=3)
    assert found[6]["body"] == client.get("/model")
    for wrong in ([], ["/model"] * 101, "/model", [1]):
        assert client.refused("POST", f"{API}/batch", json={"requests": wrong})[0] == 422


def test_a_batch_can_ask_about_the_text_it_makes(client: Client, gpt: GPT) -> None:
    id = client.trace()["id"]
    token = 4
    last = len(gpt.encode(TEXT))
    wanted = [f"/trace/latest/next?position={last}", f'/trace/{id}/append {{"token":{token}}}']
    wanted += [f"/trace/latest/next?position={last}", f"/trace/latest/lens?position={last}"]
    found = client.post("/batch", requests=wanted)
    assert [part["status"] for part in found] == [404, 200, 200, 200]  # the first one has no text before it
    longer = found[1]["body"]["id"]
    assert found[1]["body"]["tokens"][-1]["id"] == token
    assert found[2]["body"] == client.get(f"/trace/{longer}/next", position=last)
    assert found[3]["body"] == client.get(f"/trace/{longer}/lens", position=last)


def test_the_final_vector_comes_with_the_rows_of_the_most_likely_tokens(client: Client, gpt: GPT) -> None:
    id = client.trace()["id"]
    trace = gpt.trace(TEXT)
    found = client.get(f"/trace/{id}/final", position=3)
    assert found["tokens"] == np.argsort(-trace.logits[3], kind="stable")[:10].tolist()
    assert np.array_equal(np.float32(found["ln_f"]), trace["ln_f"][3])
    products = np.float32(found["rows"]) @ np.float32(found["ln_f"])
    np.testing.assert_allclose(products, trace.logits[3][found["tokens"]], rtol=1e-4, atol=1e-5)
    some = client.get(f"/trace/{id}/final", position=3, token=[7, 2])
    assert some["tokens"] == [7, 2]


def test_a_text_says_which_head_shows_most(client: Client, gpt: GPT) -> None:
    body = client.trace()
    last = len(body["tokens"]) - 1
    assert body["salient_head"] is not None
    assert body["salient_head"] == client.get(f"/trace/{body['id']}/salient-heads", position=last)["best"]
    one = client.post("/trace", text="A")
    assert one["salient_head"] is None  # nothing to look back at
    assert "salient_head" not in client.post(f"/trace/{body['id']}/append", token=3)


def test_some_columns_of_an_edited_lens(client: Client, gpt: GPT) -> None:
    edit = {"kind": "ablate_mlp", "layer": 2, "how": "zero"}
    body = {"id": client.trace()["id"], "edits": [edit], "only": "lens"}
    expected = gpt.intervene(TEXT, [edit]).lens()
    found = client.post("/intervene", **body, first=2, last=5)
    assert set(found) == {"first", "last", "lens"}
    assert found["lens"]["ids"] == expected.ids[:, 2:6].tolist()
    np.testing.assert_allclose(np.float32(found["lens"]["p"]), expected.p[:, 2:6], rtol=1e-5)
    for wrong, field in (({"first": 5, "last": 2}, "last"), ({"first": 0, "last": 99}, "position")):
        assert client.refused("POST", f"{API}/intervene", json=body | wrong)[::2] == (422, field)


def test_a_column_of_the_lens_and_its_ranks(client: Client, gpt: GPT) -> None:
    id, trace = client.trace()["id"], gpt.trace(TEXT)
    plain = client.get(f"/trace/{id}/lens", position=5)
    top = trace.lens(5)
    assert plain["ids"] == top.ids[:, 5].tolist()
    assert plain["ranks"] == {}
    token = plain["ids"][-1][0]
    logits = lens_logits_at(gpt, trace, 5)
    ranks = (1 + (logits > logits[:, [token]]).sum(axis=1)).tolist()
    assert client.get(f"/trace/{id}/lens", position=5, token=token)["ranks"] == {str(token): ranks}
    every = client.get(f"/trace/{id}/lens", position=5, ranks=True)["ranks"]
    assert set(every) == {str(i) for row in plain["ids"] for i in row}
    assert every[str(token)] == ranks


def test_the_opening_head_is_never_forgotten(gpt: GPT) -> None:
    """Not even when the activations it was found in are: a reload opens the same head."""
    client = Client(make_app(gpt))
    first = client.trace()
    assert first["salient_head"] is not None
    for text in (
        "One more text to read",
        "Another text of some words",
        "A third one, and then",
        "The fourth",
    ):
        client.trace(text)
    assert client.trace()["salient_head"] == first["salient_head"]
    # A text that has grown by a token is opened like the same text typed at once.
    token = client.trace(TEXT + " must")["tokens"][-1]["id"]
    whole = [each["id"] for each in client.trace(TEXT)["tokens"]] + [token]
    client.post(f"/trace/{first['id']}/append", token=token)
    grown = client.post("/trace", ids=whole)["salient_head"]
    at_once = Client(make_app(gpt)).post("/trace", ids=whole)["salient_head"]
    assert [grown["layer"], grown["head"]] == [at_once["layer"], at_once["head"]]


def test_which_methods_work_and_which_models_are_open(client: Client, gpt: GPT) -> None:
    found = client.get("/model")
    assert found["methods"] == [
        "input_x_gradient",
        "integrated_gradients",
        "attention_rollout",
        "direct_logit_attribution",
    ]
    lazily = Client(make_app(gpt, others=["tiny"]))
    assert [model["is_open"] for model in lazily.get("/model")["models"]] == [True, False]


def test_nobody_learns_where_the_models_lie(gpt: GPT) -> None:
    path = str(Path("/home/somebody/models/mine"))
    hidden = Client(make_app(GPT(gpt.backend, gpt.tokenizer, name=path)))
    assert hidden.get("/model")["models"][0]["name"] == "mine"
    named = Client(make_app(GPT(gpt.backend, gpt.tokenizer, name=path), name="public"))
    assert named.get("/model")["models"][0]["name"] == "public"
    relative = Client(make_app(GPT(gpt.backend, gpt.tokenizer, name="runs/mine")))
    assert relative.get("/model")["models"][0]["name"] == "runs/mine"


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/trace", {"text": "x" * 20_001}, "text: 20,001 characters are over the limit of 20,000."),
        ("/trace", {"ids": [1] * 5000}, "ids: 5,000 items are over the limit of 4,096."),
        ("/trace", {"text": 7}, "text: 7 is not a string."),
        ("/trace", {"ids": [1, -1]}, "ids.1: -1 is out of range. Use 0 or more."),
        ("/trace", {"ids": ["a"]}, "ids.0: 'a' is not an integer."),
        ("/trace", {"ids": {}}, "ids: dict is not a list."),
        ("/trace", {"txt": "a"}, "txt is not a field of this request."),
        ("/generate", {"temperature": 1}, "ids: this field is missing."),
        ("/generate", {"ids": [1], "temperature": 101}, "temperature: 101 is out of range. Use 100 or less."),
        ("/generate", {"ids": [1], "top_p": 0}, "top_p: 0 is out of range. Use more than 0."),
        (
            "/attribute",
            {"id": "a", "position": 0, "target": 1, "method": "magic"},
            "method: 'magic' is not one",
        ),
        (
            "/intervene",
            {"id": "a", "edits": [{"kind": "burn"}]},
            "edits.0: 'burn' is not one of 'ablate_head'",
        ),
        ("/intervene", {"id": "a", "edits": [{}]}, "edits.0: it needs the field 'kind'."),
    ],
)
def test_mistakes_are_told_in_plain_words(client: Client, path: str, body: Any, said: str) -> None:
    _, message, _ = client.refused("POST", API + path, json=body)
    assert message.startswith(said)
    for raw in ("nput should", "valid ", "ermitted", "ield required", "pydantic", "alue error"):
        assert raw not in message
