"What people pass, and what comes of it: every case of `cases.py`"
import os, sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cases import CASES, TABLE, Case, World, run, sentence, verdict   # noqa: E402


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    n = torch.get_num_threads()
    torch.set_num_threads(1)
    yield World(tmp_path_factory.mktemp('world'))
    torch.set_num_threads(n)


@pytest.mark.parametrize('case', CASES, ids=[f'{c.section}: {c.name}' for c in CASES])
def test_case(case, world):
    if case.needs and not find_spec(case.needs): pytest.skip(f'{case.needs} is not installed')
    here = os.getcwd()
    outcome, message = run(case, world)
    assert not (wrong := verdict(case, outcome, message)), wrong
    assert not (changed := world.changed()), f'the model is not as it was: {changed[:5]}'
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and torch.get_num_threads() == 1 and os.getcwd() == here


def test_the_table_is_whole():
    assert len(CASES) >= 90 and max(Counter((c.section, c.name) for c in CASES).values()) == 1
    assert all(c.says or c.warns or c.ok for c in CASES), 'a case without an outcome'
    assert {'Samplers', 'Preprocessing', 'First look', 'Labels', 'Diverged tasks', 'Few classes', 'Without a calibration set', "A network's output",
            'Any nn.Module', 'Batches', 'Folders', 'Checkpoints', 'The out folder', 'The command'} <= set(TABLE)


def test_the_world_is_as_cases_need_it(world):
    f = world.plain.flips()
    assert .75 < f.before < 1 and len(world.plain.hard) == 6 and len(world.plain.plan) == 2 and len(world.train) == 60 and len(world.test) == 30


@pytest.mark.parametrize('text', ['', 'two\nlines', 'One. Two', 'x has no attribute y', 'mat1 and mat2 shapes cannot be multiplied'])
def test_what_is_not_a_sentence(text): assert sentence(text)


@pytest.mark.parametrize('case', [
    Case('no refusal', lambda w: 1, says='x'), Case('other words', lambda w: w.predict(K=9), says='Q=9'), Case('not our error', lambda w: int('x'), says='x'),
    Case('another error', lambda w: {}['x'], says='x'), Case('no warning', lambda w: 1, warns='x'), Case('a wrong result', lambda w: 1, ok=lambda r, w: r == 2),
    Case('a check that fails', lambda w: 1, ok=lambda r, w: r.first), Case('an error', lambda w: w.predict(K=9), ok=lambda r, w: True)], ids=lambda c: c.name)
def test_a_case_can_fail(case, world): assert verdict(case, *run(case, world))


def test_a_changed_model_is_seen(world):
    def spoil(w): net = w.watch(w.copy()); net[0].weight.data.add_(1e-6)
    def switch(w): w.watch(w.copy()).train()
    for f in (spoil, switch): run(Case('', f), world); assert world.changed()
