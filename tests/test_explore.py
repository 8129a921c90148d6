"The explorer: driven as widgets over a real run, and by clicks in a browser where a Jupyter server and Chromium are there."
import asyncio, json, os, shutil, socket, subprocess, sys, time, urllib.request
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
import torch

from closed_loop.core import cli_predict
from closed_loop.data.glyphs import glyph_net, glyphs
from closed_loop.explore import as_if, changed, explore, explore_table

SOME = 'ABCDEFGHIJKLMNOPQRST'
VOILA = shutil.which('voila', path=os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']]))


@pytest.fixture(scope='module')
def run():
    "A result with several views and probes, and what it was made from"
    from fastai.data.core import DataLoaders
    from fastai.learner import Learner
    train, test, calib = (glyphs(n, split=s, classes=SOME) for n, s in ((60, 'train'), (20, 'test'), (20, 'calib')))
    torch.manual_seed(0)
    dls = DataLoaders.from_dsets(train, test, bs=64, device='cpu')
    dls.train.rng.seed(0)
    learn = Learner(dls, glyph_net(len(SOME)), torch.nn.CrossEntropyLoss())
    import fastai.callback.schedule  # noqa: F401
    with learn.no_bar(), learn.no_logging(): learn.fit_one_cycle(4, 1e-2)
    kw = dict(calib=calib, K=4, Q=4, cover=None, epochs=1, generalist=0, device='cpu', progress=False)
    return learn.model, train, test, kw, cli_predict(learn.model, train, test, **kw)


def test_nothing_moved_is_the_result_itself(run):
    *_, res = run
    e = explore(res)
    assert torch.equal(e.result.probs, res.probs) and e.result.flips() == res.flips() and e.result.price == res.price


def test_another_rule_is_what_a_run_with_it_decides(run):
    net, train, test, kw, res = run
    for settings in (dict(rule='conditional', alpha=.3), dict(rule='paper'), dict(rule='blend', alpha=.9, caution=2.)):
        real = cli_predict(net, train, test, **kw, **settings)
        assert torch.equal(as_if(res, **settings).preds, real.preds), settings


def test_fewer_tasks_are_those_that_a_run_with_little_time_begins_with(run):
    net, train, test, kw, res = run
    seen = []
    cli_predict(net, train, test, **{**kw, 'progress': lambda done, total, said: seen.append(said)})
    shares = [float(s.split('%')[0]) for s in seen]             # of the expected gain, task after task
    gains = [b-a for a, b in zip([0, *shares], shares)]
    assert gains == sorted(gains, reverse=True)                 # all tasks cost the same here
    one = as_if(res, tasks=1)
    real = cli_predict(net, train, test, **kw, minutes=1e-9)    # no time at all
    assert torch.equal(as_if(res, tasks=0).preds, real.preds) and len(one.plan) == 1
    assert list(one.plan[0].members) in [list(t.members) for t in res.plan]


def test_lower_eps_leaves_the_base_models_answers(run):
    *_, res = run
    conf = res.seen.softmax(1).amax(1)
    for eps in (.3, .5, .7):
        r = as_if(res, eps=eps)
        assert set(r.hard.tolist()) == {i for i in res.hard.tolist() if conf[i] < eps}
        assert torch.equal(r.preds[conf >= eps], res.base_probs.argmax(1)[conf >= eps])
        assert len(r.probes.targets) == int((res.probes.seen.softmax(1).amax(1) <= eps).sum())


def test_every_control_shows_its_numbers(run):
    _, train, _, _, res = run
    e = explore(res, train, 8)
    moves = dict(eps=.6, tasks=3, rule='conditional', alpha=.8, caution=1.5)
    for k, v in moves.items(): e.control[k].value = v
    row = explore_table(res, **moves).iloc[0]
    for k in ('hard', 'tasks', 'changed', 'F2T', 'T2F'): assert f'{k}<br><b>{int(row[k]):,}<' in e.numbers.value, k
    assert f'price<br><b>{int(row.price):,}<' in e.numbers.value and f'gain<br><b>{100*row.gain:+.2f}<' in e.numbers.value
    assert e.images.value.count('<img') == min(8, len(changed(e.result)))
    for i, t in enumerate(res.plan):
        e.task.value = i
        assert f'{len(t)} images that hesitate' in e.members.value
        assert e.members.value.count('alt="training image') == 8*len(t.classes)


def test_a_move_is_fast(run):
    "On the processor's clock, since the machine may be busy"
    _, train, _, _, res = run
    e, spent = explore(res, train), []
    for k, v in [('eps', .7), ('eps', .5), ('tasks', 2), ('rule', 'blend'), ('alpha', .2), ('caution', 2.), ('rule', 'validated')]:
        t = time.process_time()
        e.control[k].value = v
        spent.append(time.process_time()-t)
    assert sorted(spent)[len(spent)//2] < .2, spent


def test_saved_results_can_be_explored(run, tmp_path):
    from closed_loop.result import load_result
    *_, res = run
    back = load_result(res.save(tmp_path))
    assert torch.equal(as_if(back, eps=.6, tasks=2).probs, as_if(res, eps=.6, tasks=2).probs)
    e = explore(replace(back, targets=None))
    assert 'F2T' not in e.numbers.value and '<img' not in e.images.value and 'changed answers' in e.images.value


CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
FLAGS = '--headless --no-sandbox --disable-gpu --disable-background-networking --disable-sync --no-first-run'.split()


def wait(f, seconds=60):
    "What `f` returns as soon as it is something"
    end = time.time()+seconds
    while time.time() < end:
        try:
            if v := f(): return v
        except OSError: pass
        time.sleep(.2)
    raise TimeoutError(f'nothing for {seconds} s')


def opened(url):
    with urllib.request.urlopen(url, timeout=60) as r: return r.read()


async def drive(ws_url, page):
    "Open the page, move the first slider, choose another task: what is shown each time, and what went wrong"
    import websockets
    async with websockets.connect(ws_url, max_size=None) as ws:
        wrong, n = [], 0
        async def call(method, **params):
            nonlocal n
            n += 1
            await ws.send(json.dumps(dict(id=n, method=method, params=params)))
            while (o := json.loads(await ws.recv())).get('id') != n:
                if o.get('method') == 'Runtime.exceptionThrown': wrong.append(str(o['params'])[:500])
            return o['result']
        async def js(s): return (await call('Runtime.evaluate', expression=s, returnByValue=True))['result'].get('value')
        async def until(s):
            end = time.time()+90
            while not await js(s):
                if time.time() > end: raise TimeoutError(s)
                await asyncio.sleep(.1)
        text = "[...document.querySelectorAll('.widget-html-content')].map(o=>o.innerText)"
        await call('Runtime.enable')
        await call('Page.navigate', url=page)
        await until("document.querySelectorAll('figure img').length>5")
        shown = [await js(text)]
        x, y = await js("(()=>{const r=document.querySelector('.slider-container').getBoundingClientRect();"
                        "return [r.x+.6*r.width,r.y+r.height/2]})()")
        for kind in ('mousePressed', 'mouseReleased'):
            await call('Input.dispatchMouseEvent', type=kind, x=x, y=y, button='left', clickCount=1)
        await until(f"{text}[0]!={json.dumps(shown[0][0])}")
        shown.append(await js(text))
        await js("(()=>{const s=document.querySelector('select[size]'); s.selectedIndex=1; s.dispatchEvent(new Event('change',{bubbles:true}))})()")
        await until(f"{text}[2]!={json.dumps(shown[1][2])}")
        return [*shown, await js(text)], wrong


@pytest.mark.skipif(not CHROMIUM, reason='Chromium is not installed')
@pytest.mark.skipif(not VOILA, reason='voila, a Jupyter server that shows a notebook as a page, is not installed')
def test_in_a_browser(run, tmp_path):
    pytest.importorskip('websockets')
    *_, res = run
    res.save(tmp_path/'res')
    src = ("import warnings; warnings.simplefilter('ignore')\nfrom closed_loop.explore import explore\nfrom closed_loop.result import load_result\n"
           f"from closed_loop.data.glyphs import glyphs\nres = load_result({str(tmp_path/'res')!r})\ntest = glyphs(20, split='test', classes={SOME!r})\n"
           f"res.get_image = lambda i: test[i][0]\nexplore(res, glyphs(8, classes={SOME!r}))")
    nb = nbformat.v4.new_notebook(metadata=dict(kernelspec=dict(name='here', display_name='here', language='python')), cells=[nbformat.v4.new_code_cell(src)])
    nbformat.write(nb, tmp_path/'explore.ipynb')
    kernel = tmp_path/'jupyter/kernels/here'
    kernel.mkdir(parents=True)
    spec = dict(argv=[sys.executable, '-m', 'ipykernel_launcher', '-f', '{connection_file}'], display_name='here', language='python')
    (kernel/'kernel.json').write_text(json.dumps(spec))
    env = {**os.environ, 'JUPYTER_PATH': str(tmp_path/'jupyter'), 'OMP_NUM_THREADS': '1'}
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    port, debug = 8000+os.getpid() % 1000, 9000+os.getpid() % 1000
    server = subprocess.Popen([VOILA, 'explore.ipynb', '--no-browser', f'--port={port}'], cwd=tmp_path, env=env, **quiet)
    browser = subprocess.Popen([CHROMIUM, *FLAGS, f'--remote-debugging-port={debug}', f'--user-data-dir={tmp_path/"profile"}', 'about:blank'], **quiet)
    try:
        tabs = wait(lambda: json.loads(opened(f'http://localhost:{debug}/json')))
        wait(lambda: not socket.create_connection(('localhost', port), 1).close())
        (before, moved, clicked), wrong = asyncio.run(drive(next(t for t in tabs if t['type'] == 'page')['webSocketDebuggerUrl'], f'http://localhost:{port}/'))
    finally:
        for p in (browser, server): p.terminate()
        for p in (browser, server): p.wait(20)
    assert not wrong, wrong
    assert f'hard\n{len(res.hard)}' in before[0] and 'changed answers' in before[1] and 'hesitate between' in before[2]
    assert f'hard\n{len(res.hard)}' not in moved[0] and clicked[0] == moved[0] and clicked[2] != moved[2]
