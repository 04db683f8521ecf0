"""Texts that follow a JSON schema, a regular expression, a grammar or a choice, in any vocabulary."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import glassgpt
from glassgpt.errors import QueueFullError, SettingError, UserError
from glassgpt.generate import Engine, SamplingParams
from glassgpt.generate.sampling import constraints as constraints_module
from glassgpt.generate.sampling import grammar_checker
from glassgpt.tokenizer.char_level import ByteTokenizer, CharTokenizer
from tests.conftest import SHIPPED
from tests.generate.random_schemas import random_schema
from tests.generate.tiny import TINY, LetterTokenizer, TinyBackend, finished, run

pytest.importorskip("llguidance", reason="llguidance is not installed: pip install 'glassgpt[constrain]'")
jsonschema = pytest.importorskip("jsonschema")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(params=[False, True], ids=["host", "device"])
def device(request):
    return request.param


@pytest.fixture(scope="module")
def gpt():
    return glassgpt.load(SHIPPED, device="cpu")


def small(tokenizer, rows=2, device=False, **options):
    """A model of random numbers for any vocabulary."""
    config = dataclasses.replace(
        TINY, vocab_size=tokenizer.vocab_size, n_positions=64, eos_token_id=tokenizer.eot_id
    )
    return Engine(TinyBackend(rows, config=config, device=device, sharpness=0.5, **options), tokenizer)


def texts(engine, settings, count=1):
    numbers = [engine.add([1], dataclasses.replace(settings, seed=i)) for i in range(count)]
    results = finished(run(engine))
    return [results[number, 0] for number in numbers]


class TestKinds:
    def test_json(self, gpt):
        for seed in range(2):
            found = gpt.generate("A person: ", schema=PERSON, temperature=1.2, top_k=None, seed=seed)
            jsonschema.validate(json.loads(found.text), PERSON)
            assert found.finish_reason == "stop"
            assert found.notes == []
            assert gpt.decode(found.tokens) == found.text

    def test_a_schema_as_text(self, gpt):
        one = gpt.generate("A person: ", schema=json.dumps(PERSON), seed=1)
        assert one.text == gpt.generate("A person: ", schema=PERSON, seed=1).text

    def test_regex(self, gpt):
        pattern = "[A-Z][a-z]{2,8}, (é|€|日本)[0-9]{2}"
        for seed in range(2):
            assert re.fullmatch(pattern, gpt.generate("It was ", regex=pattern, seed=seed).text)

    def test_choice_is_drawn_from_the_models_distribution(self, gpt):
        found = {gpt.generate("Yes or no?", choice=["yes", "no", "maybe so"], seed=i).text for i in range(6)}
        assert found <= {"yes", "no", "maybe so"}
        assert len(found) > 1

    @pytest.mark.parametrize(
        "grammar",
        ['start: "a" ("b" | "c")~1..3 "d"', 'root ::= "a" [bc] [bc]? [bc]? "d"'],
        ids=["lark", "gbnf"],
    )
    def test_grammar(self, gpt, grammar):
        for seed in range(3):
            assert re.fullmatch("a[bc]{1,3}d", gpt.generate("x", grammar=grammar, seed=seed).text)

    def test_greedy_takes_the_likeliest_that_is_allowed(self, gpt):
        found = gpt.generate("The", regex="[0-9]", temperature=0, logprobs=1)  # exact, unlike 0
        after = gpt.logits([gpt.encode("The")])[0, -1]
        digits = {gpt.encode(str(i))[0]: str(i) for i in range(10)}
        assert found.text == digits[max(digits, key=lambda token: after[token])]
        total = np.log(np.exp(after.astype(np.float64)).sum())
        assert found.logprobs[0] == pytest.approx(after[found.tokens[0]] - total, abs=1e-4)  # the model's own


class TestVocabularies:
    @pytest.mark.parametrize(
        "tokenizer",
        [ByteTokenizer(), CharTokenizer('abcdefghijk{}[]",: é€0123456789\n'), LetterTokenizer()],
        ids=["bytes", "characters", "letters"],
    )
    def test_any(self, tokenizer, device):
        for found in texts(small(tokenizer, device=device), SamplingParams(regex="[a-f]{3}(é|€)"), 6):
            assert re.fullmatch("[a-f]{3}(é|€)", found.text)
            assert found.finish_reason == "stop"

    def test_characters_that_a_vocabulary_lacks(self):
        engine = small(CharTokenizer("abc"))
        engine.add([1], SamplingParams(regex="[a-c]x"))
        [error] = [event.error for event in run(engine) if event.error]
        assert "regular expression cannot be followed" in str(error)

    def test_no_end_of_text(self):
        class Endless(LetterTokenizer):
            eot_id = None

        found = texts(small(Endless()), SamplingParams(regex="[a-f]{3}"))[0]
        assert (len(found.text), found.finish_reason) == (3, "stop")

    def test_end_of_text_is_drawn_where_it_may_end(self):
        engine = small(LetterTokenizer())
        found = texts(engine, SamplingParams(regex="[a-f]*", max_new_tokens=60, logit_bias={0: 2.0}), 8)
        assert {f.finish_reason for f in found} == {"stop"}
        assert len({len(f.text) for f in found}) > 1
        ignoring = texts(engine, SamplingParams(regex="[a-f]{2}", ignore_eot=True))[0]
        assert len(ignoring.text) == 2

    def test_without_a_tokenizer(self):
        with pytest.raises(UserError, match="tokenizer"):
            Engine(TinyBackend()).add([1], SamplingParams(regex="a"))


class TestTogether:
    def test_neighbours_do_not_matter(self, device):
        settings = [
            SamplingParams(seed=1, regex="[a-f]{2,9}", max_new_tokens=20),
            SamplingParams(seed=2, max_new_tokens=9, temperature=1.5),
            SamplingParams(seed=3, schema={"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3}),
            SamplingParams(seed=4, choice=["abc", "abd", "x"], samples=3, repetition_penalty=1.3),
            SamplingParams(temperature=0, regex="é[xyz]{4}"),
        ]
        tokenizer = ByteTokenizer()
        alone = []
        for one in settings:
            engine = small(tokenizer, 1, device)
            engine.add([1, 2], one)
            alone.append({key[1]: g.tokens for key, g in finished(run(engine)).items()})
        engine = small(tokenizer, 3, device)
        for one in settings:
            engine.add([1, 2], one)
        for (number, sample), generation in finished(run(engine)).items():
            assert generation.tokens == alone[number - 1][sample]

    def test_the_end_of_the_context_is_no_end(self):
        engine = small(LetterTokenizer())
        found = texts(engine, SamplingParams(regex="[a-f]{100}", max_new_tokens=200))[0]
        assert re.fullmatch("[a-f]{100}", found.text)


class TestCut:
    def test_too_few_tokens_are_noted(self, gpt):
        found = gpt.generate("A person: ", schema=PERSON, max_new_tokens=4, seed=1)
        assert found.finish_reason == "length"
        assert found.notes == ["the text ended at max_new_tokens 4 and does not yet follow the JSON schema"]

    def test_a_stop_string_inside_is_noted(self, gpt):
        found = gpt.generate("A person: ", schema=PERSON, stop='"age', seed=1)
        assert found.finish_reason == "stop"
        assert found.notes == ["the text ended early and does not yet follow the JSON schema"]

    def test_what_could_go_on_but_need_not_is_not(self):
        found = texts(
            small(LetterTokenizer()), SamplingParams(regex="[a-f]+", max_new_tokens=5, logit_bias={0: -99})
        )
        assert found[0].notes == []


class TestMistakes:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"schema": {"type": "strin"}}, "JSON schema .*Invalid type: strin"),
            ({"schema": {"$ref": "#/nope"}}, "/nope"),
            ({"schema": "{"}, "not JSON"),
            ({"schema": 3}, "write an object"),
            ({"schema": {"a": {1, 2}}}, "not JSON"),
            ({"regex": "(a"}, "unclosed group"),
            ({"regex": 5}, "regex is 5"),
            ({"grammar": "start: foo"}, "unknown name"),
            ({"regex": "a", "choice": ["b"]}, "regex and choice"),
            ({"choice": ["x" * 200_000]}, "characters, and 200,000 are the most"),
            ({"regex": "a", "beams": 2, "temperature": 0}, "beam search"),
        ],
    )
    def test_one_line(self, gpt, settings, message):
        with pytest.raises(SettingError, match=message) as caught:
            gpt.generate("x", **settings)
        assert "\n" not in str(caught.value)
        assert gpt.generate("x", max_new_tokens=2).tokens  # the engine is as it was

    def test_without_llguidance(self, gpt, monkeypatch):
        def missing(name):
            raise ModuleNotFoundError(name=name)

        monkeypatch.setattr(constraints_module, "import_module", missing)
        with pytest.raises(UserError, match="glassgpt\\[constrain\\]"):
            gpt.generate("x", regex="[a-z]{77}")


@pytest.mark.slow
def test_threads_that_compile_at_once_get_what_one_gets(gpt):
    engine = Engine(gpt.backend.with_rows(2), gpt.tokenizer)
    wanted = [SamplingParams(regex=f"[a-z]{{{1 + n % 5}}}", max_new_tokens=9, seed=n) for n in range(40)]
    with ThreadPoolExecutor(8) as threads:
        compiled = list(threads.map(engine.compile, wanted))
    numbers = [
        engine.add([1], settings, constraint=constraint)
        for settings, constraint in zip(wanted, compiled, strict=True)
    ]
    results = finished(run(engine))
    for settings, number in zip(wanted, numbers, strict=True):
        assert re.fullmatch(settings.regex, results[number, 0].text)


def follow_random_schemas(gpt, count):
    rng = random.Random(7)
    engine = Engine(gpt.backend.with_rows(16), gpt.tokenizer)
    schemas = {}
    for seed in range(count):
        schema = random_schema(rng)
        settings = SamplingParams(schema=schema, max_new_tokens=500, temperature=1.0, top_k=None, seed=seed)
        schemas[engine.add(gpt.encode("Some JSON: "), settings)] = schema
    results = finished(run(engine))
    assert len(results) == count
    for (number, _), generation in results.items():
        assert generation.finish_reason == "stop", schemas[number]
        value = json.loads(generation.text)
        jsonschema.Draft202012Validator(schemas[number]).validate(value)
    return results


def test_a_few_random_schemas(gpt):
    follow_random_schemas(gpt, 4)


@pytest.mark.slow
def test_200_random_schemas(gpt):
    results = follow_random_schemas(gpt, 200)
    assert len({generation.text for generation in results.values()}) > 150


class TestCommand:
    @pytest.mark.slow
    def test_files(self, tmp_path, capsys):
        from glassgpt.cli import main

        schema, grammar = tmp_path / "person.json", tmp_path / "words.lark"
        schema.write_text(json.dumps(PERSON))
        grammar.write_text('start: "yes" | "no"')
        for options in (["--json-schema", str(schema)], ["--grammar", str(grammar)], ["--regex", "[0-9]{2}"]):
            assert main(["generate", "It is ", "--model", SHIPPED, "--seed", "1", *options, "--json"]) == 0
            found = json.loads(capsys.readouterr().out)
            assert found["finish_reason"] == "stop"
            if "--json-schema" in options:
                jsonschema.validate(json.loads(found["text"]), PERSON)
        assert re.fullmatch("[0-9]{2}", found["text"])

    def test_a_wrong_file_is_one_line(self, tmp_path, capsys):
        from glassgpt.cli import main

        wrong = tmp_path / "wrong.json"
        wrong.write_text('{"type": "strin"}')
        assert main(["generate", "x", "--model", SHIPPED, "--json-schema", str(wrong)]) == 2
        assert "Invalid type: strin" in capsys.readouterr().err


def chain(length):
    """A grammar whose rules form a chain."""
    return "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(length)) + f'r{length}: "z"'


def references(length):
    """A JSON schema whose definitions form a chain."""
    links = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(length)}
    return {"$defs": {**links, f"d{length}": {"const": "z"}}, "$ref": "#/$defs/d0"}


@pytest.fixture(scope="module")
def engine():
    return small(ByteTokenizer())


class TestHostileGrammars:
    """What would take the process down, or minutes, is refused; what people write is not."""

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"grammar": chain(3000)}, "nested too deeply"),
            ({"schema": references(3000)}, "nested too deeply"),
            ({"regex": "a?" * 20_000}, "too complex"),
            pytest.param(*({"regex": "[a-u]?" * 8000}, "too complex"), marks=pytest.mark.slow),
            ({"regex": "(" * 50_000 + "a" + ")" * 50_000}, "nested"),
            ({"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000}, "recursion"),
            ({"regex": "a" * 200_001}, "200,001 characters"),
        ],
        ids=["rules", "references", "optional", "classes", "parentheses", "gbnf", "length"],
    )
    def test_are_refused_by_name(self, engine, settings, reason):
        for _ in range(2):  # the second time from memory
            with pytest.raises(SettingError, match=reason) as caught:
                engine.compile(SamplingParams(**settings))
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 300

    @pytest.mark.slow
    def test_nested_repeats_are_refused_or_followed(self, engine):
        """Compiling these takes about as long as is allowed: a fast machine does it, a slow one refuses."""
        settings = SamplingParams(
            regex="((((a{50}){50}){50}){50}){50}", max_new_tokens=3, temperature=0, speculate="off"
        )
        refused = ""
        try:
            engine.compile(settings)
        except SettingError as error:
            refused = str(error)
        if refused:
            assert "too complex" in refused
            return
        engine.add([1, 2], settings)
        while engine.busy:
            for event in engine.step():
                if event.generation is not None:
                    assert set(event.generation.text) <= {"a"}
                assert event.error is None or "too complex" in str(event.error)

    @pytest.mark.slow
    @pytest.mark.parametrize("limit", [1 << 20, 2 << 20])
    def test_are_refused_sooner_where_stacks_are_small(self, engine, limit):
        """Under `ulimit -s 1024` a chain of 400 rules has killed the process that compiled it."""
        resource = pytest.importorskip("resource")
        program = (
            "from glassgpt.generate import SamplingParams\n"
            "from tests.generate.test_constraints import ByteTokenizer, SettingError, chain, small\n"
            "import threading\n"
            "def work():\n"
            "    engine = small(ByteTokenizer())\n"
            "    for length in (10, 400, 800):\n"
            "        try:\n"
            "            engine.compile(SamplingParams(grammar=chain(length)))\n"
            "            print(length)\n"
            "        except SettingError as error:\n"
            "            print('nested too deeply' in str(error))\n"
            "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        )
        hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
        result = subprocess.run(
            [sys.executable, "-c", program],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (limit, hard)),
            capture_output=True,
            text=True,
        )
        assert (result.returncode, result.stdout.split()) == (0, ["10", "True", "True"]), result.stderr

    def test_a_chain_that_is_long_but_harmless_is_followed(self, engine):
        assert texts(engine, SamplingParams(grammar=chain(300), max_new_tokens=20))[0].text == "z"
        assert texts(engine, SamplingParams(schema=references(300), max_new_tokens=20))[0].text == '"z"'

    def test_a_child_that_died_is_started_again(self, engine):
        engine.compile(SamplingParams(regex="[ab]{2}"))
        checker = engine._grammars._checker
        checker._child.kill()
        checker._child.wait()
        assert engine.compile(SamplingParams(regex="[ab]{3}")) is not None

    def test_engines_of_one_vocabulary_share_a_child_and_it_ends_with_them(self):
        one, two = small(CharTokenizer(list("abc"))), small(CharTokenizer(list("abc")))
        for each in (one, two):
            each.compile(SamplingParams(regex="a+b"))
        assert one._grammars._checker is two._grammars._checker
        child = one._grammars._checker._child
        assert child.poll() is None
        one._grammars._checker = two._grammars._checker = None
        assert child.poll() is not None

    def test_without_a_constraint_nothing_is_started(self):
        engine = small(ByteTokenizer())
        texts(engine, SamplingParams(max_new_tokens=2))
        assert engine._grammars._checker is None
        assert engine._mask_workers._started is False

    def test_the_queue_is_bounded(self, engine):
        engine.compile(SamplingParams(regex="[ab]{2}"))
        checker = engine._grammars._checker
        with checker._turn, ThreadPoolExecutor(grammar_checker.MAX_WAITING) as pool:
            waiting = [pool.submit(checker.check, "regex", f"x{i}") for i in range(pool._max_workers)]
            while checker._waiting < grammar_checker.MAX_WAITING:
                pass
            with pytest.raises(QueueFullError, match="16 grammars wait"):
                checker.check("regex", "y")
            checker._turn.release()
            assert all(future.result() for future in waiting)
            checker._turn.acquire()


class TestSlowMasks:
    """A mask that takes long delays its own text only."""

    @pytest.mark.parametrize("rows", [2, 3])
    def test_others_go_on(self, device, rows, monkeypatch):
        engine = small(ByteTokenizer(), rows=rows, device=device)
        settings = SamplingParams(regex="[ab]{6}", seed=0, max_new_tokens=20)
        expected = texts(small(ByteTokenizer(), device=device), settings)[0]
        constraint, may_go = engine.compile(settings), threading.Event()
        compute = constraints_module.Constraint.compute

        def wait_and_compute(self):
            if self._lexer is constraint._lexer:
                assert may_go.wait(60)
            compute(self)

        monkeypatch.setattr(constraints_module.Constraint, "compute", wait_and_compute)
        late = engine.add([1], settings, constraint=constraint)
        others = [engine.add([2], SamplingParams(seed=i, max_new_tokens=8)) for i in range(2)]
        others.append(engine.add([2], SamplingParams(regex="[cd]{5}", seed=1, max_new_tokens=20)))
        events = []
        while len(finished(events)) < len(others):
            events += engine.step()
        assert {number for number, _ in finished(events)} == set(others)
        may_go.set()
        while engine.busy:
            events += engine.step()
        assert finished(events)[late, 0].tokens == expected.tokens

    def test_tokens_wait_while_another_sequence_has_the_lexer(self, monkeypatch):
        monkeypatch.setattr(constraints_module, "PUSH_GRACE", 0)
        engine = small(ByteTokenizer())
        constraint = engine.compile(SamplingParams(regex="ab"))
        with constraint._lexer.lock:
            constraint.push(ord("a"))
            constraint.push(ord("b"))
            assert not constraint.complete
        mask = constraint.mask()
        assert constraint.complete
        assert not mask[: 256 // 32].any()

    def test_a_mask_that_takes_too_long_fails_its_request(self, monkeypatch):
        monkeypatch.setattr(constraints_module, "MAX_MASK_SECONDS", -1)
        engine = small(ByteTokenizer())
        number = engine.add([1], SamplingParams(regex="[ab]{6}", max_new_tokens=20))
        other = engine.add([1], SamplingParams(max_new_tokens=5))
        events = run(engine)
        errors = [event for event in events if event.error is not None]
        assert [event.request for event in errors] == [number]
        assert "too complex" in str(errors[0].error)
        assert len(finished(events)[other, 0].tokens) == 5

    def test_a_lexer_that_hit_a_limit_is_not_used_again(self, engine):
        constraint = engine.compile(SamplingParams(regex="x{50}" + "[a-u]?" * 1500))
        for _ in range(60):
            if constraint.error is not None or not constraint.mask().any():
                break
            constraint.push(ord("x"))
        assert constraint.error is not None
        again = engine.compile(SamplingParams(regex="x{50}" + "[a-u]?" * 1500))
        assert again.mask().any()
