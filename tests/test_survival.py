"""What a long run survives: kill -9, a full disk, a folder that cannot be written to, other processes, too little time, and length

One process imports torch once and forks whatever is to be killed; it is asked for one scenario after another."""
import json, os, random, resource, signal, subprocess, sys, tempfile, time, traceback, warnings
from pathlib import Path

if __name__ == '__main__': warnings.simplefilter('ignore')

import numpy as np
import torch

from closed_loop import run, schedule
from closed_loop.checkpoint import TaskStore, make_manifest
from closed_loop.config import make_config
from closed_loop.core import cli_predict
from closed_loop.data.glyphs import glyph_classes, glyph_net, glyphs
from closed_loop.decide import decide
from closed_loop.inputs import open_problem
from closed_loop.plan import Task, make_plan
from closed_loop.fates import fates, flips
from closed_loop.result import load_result
from closed_loop.run import Looks

# ---- what runs in the process that forks


def problem():
    some = glyph_classes()[:12]
    torch.manual_seed(0)
    data = dict(zip(('train', 'test', 'calib'), (glyphs(n, split=s, classes=some) for n, s in ((40, 'train'), (10, 'test'), (10, 'calib')))))
    net = glyph_net(len(some), width=8)
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    for x, y in torch.utils.data.DataLoader(data['train'], 48, shuffle=True): opt.zero_grad(); torch.nn.functional.cross_entropy(net(x), y).backward(); opt.step()
    return dict(model=net, **data)


NO_LIMIT = resource.getrlimit(resource.RLIMIT_FSIZE)
SETTINGS = dict(quantile=.5, K=3, Q=7, cover=None, merge=False, epochs=1, generalist=40, device='cpu', cache=1.)


def predict(d, begun=None, **kw):
    "A run whose tasks are written down when they begin; its result is kept"
    one = run.run_task
    def logged(r, task):
        with open(d/'begun', 'a') as f: f.write(json.dumps([os.getpid(), task.members])+'\n')
        if begun: begun(len(log(d)), task)
        return one(r, task)
    schedule.run_task = logged
    cli_predict(**DATA, **{**SETTINGS, 'store': d/'tasks', 'progress': False, **kw}).save(d/f'result{os.getpid()}')


def fork(f, *args, **kw):
    "A child that calls `f`, and what it says if it fails"
    d = args[0]
    if pid := os.fork(): return pid
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        f(*args, **kw)
        code = 0
    except BaseException as e:
        resource.setrlimit(resource.RLIMIT_FSIZE, NO_LIMIT)
        (d/f'said{os.getpid()}').write_text(f'{type(e).__name__}: {e}\n{traceback.format_exc()}')
    finally: os._exit(code)


def wait(pid): return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def log(d): return [json.loads(o) for o in (d/'begun').read_text().splitlines()] if (d/'begun').exists() else []
def files(d): return {p.name: p.read_bytes() for p in (d/'tasks').glob('*.safetensors')}
def said(d, pid): return (d/f'said{pid}').read_text() if (d/f'said{pid}').exists() else ''
def members(d): return {tuple(json.loads(meta(p))['members']) for p in (d/'tasks').glob('*.safetensors') if p.stem != 'first_look'}


def meta(path):
    from safetensors import safe_open
    with safe_open(path, 'pt') as f: return f.metadata()['meta']


def complete(d, **kw):
    "Run to the end; returns the looks' bits and the tasks that were begun"
    n = len(log(d))
    pid = fork(predict, d, **kw)
    assert wait(pid) == 0, said(d, pid)
    return bits(d, pid), [tuple(m) for _, m in log(d)[n:]]


def bits(d, pid):
    r = load_result(d/f'result{pid}')
    assert not r.unfinished and len(r.plan) >= 5
    return [t.numpy().tobytes().hex() for t in (r.probs, r.second, r.first_tta, r.probes.second)]


def whole():
    "What an uninterrupted run says, and how long it takes"
    d, t = Path(tempfile.mkdtemp()), time.time()
    res, begun = complete(d)
    return res, sorted(begun), time.time()-t


def killed(n):
    "Killed at random moments; the same again to the end"
    rng, (res, tasks, seconds), moments = random.Random(0), whole(), []
    for i in range(n):
        d = Path(tempfile.mkdtemp())
        pid = fork(predict, d)
        time.sleep(seconds*rng.uniform(.05, .95))
        os.kill(pid, signal.SIGKILL)
        wait(pid)
        there, before = members(d), files(d)
        again, begun = complete(d)
        assert again == res, f'moment {i}: other answers'
        assert sorted(begun+list(there)) == tasks, f'moment {i}: {len(there)} were there, {len(begun)} computed'
        assert before.items() <= files(d).items()
        moments.append(len(there))
    return dict(tasks=len(tasks), there=moments)


def killed_writing(n):
    "Killed in the middle of the n-th write, which is half done, or between writing and renaming"
    res, tasks, _ = whole()
    for half in (True, False):
        d, count = Path(tempfile.mkdtemp()), iter(range(10**6))
        def dying(d):
            sync = os.fsync
            def fsync(fd):
                if next(count) < n: return sync(fd)
                if half: os.ftruncate(fd, os.fstat(fd).st_size//2)
                os.kill(os.getpid(), signal.SIGKILL)
            os.fsync = fsync
            predict(d)
        assert wait(fork(dying, d)) == -signal.SIGKILL
        there = members(d)
        again, begun = complete(d)
        assert again == res and sorted(begun+list(there)) == tasks and len(there) == max(0, n-6), (there, begun)
    return dict(ok=True)


def together(n):
    "Several processes on one store; one is killed while it is at work on a task"
    res, tasks, _ = whole()
    d = Path(tempfile.mkdtemp())
    pids = [fork(predict, d, lambda n, t: time.sleep(.3)) for _ in range(n)]
    while not any(p == pids[0] for p, _ in log(d)): time.sleep(.01)
    os.kill(pids[0], signal.SIGKILL)
    assert wait(pids[0]) == -signal.SIGKILL
    for p in pids[1:]: assert wait(p) == 0, said(d, p)
    assert all(bits(d, p) == res for p in pids[1:])
    begun = log(d)
    twice = [m for p, m in begun if p != pids[0] and [pids[0], m] in begun]
    assert len(twice) <= 1 and sorted(tuple(m) for p, m in begun if p != pids[0] or m not in twice) == tasks
    assert not [p for p in (d/'tasks').iterdir() if 'claim' in p.name]
    return dict(begun=len(begun), tasks=len(tasks), busy=len({p for p, _ in begun}))


def full():
    "A disk that is full in the fourth task"
    res, tasks, _ = whole()
    d = Path(tempfile.mkdtemp())
    def limit(n, task):
        if n == 4: resource.setrlimit(resource.RLIMIT_FSIZE, (100, NO_LIMIT[1]))
    pid = fork(predict, d, limit)
    assert wait(pid) == 1
    there, before = members(d), files(d)
    again, begun = complete(d)
    assert again == res and len(there) == 3 and sorted(begun+list(there)) == tasks and before.items() <= files(d).items()
    return dict(said=said(d, pid).splitlines()[0], left=[p.name for p in (d/'tasks').iterdir() if p.suffix == '.tmp'])


def readonly():
    "A store that cannot be written to any more"
    res, tasks, _ = whole()
    d = Path(tempfile.mkdtemp())
    d.chmod(0o777)
    assert wait(fork(predict, d, lambda n, t: os._exit(3) if n == 4 else None)) == 3
    there = members(d)
    (d/'tasks').chmod(0o555)
    def nobody(d):
        if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)   # root may write anywhere
        predict(d)
    (d/'begun').chmod(0o666)
    pid = fork(nobody, d)
    assert wait(pid) == 1
    (d/'tasks').chmod(0o755)
    again, begun = complete(d)
    assert again == res and sorted(begun+list(there)) == tasks and len(there) == 3
    return dict(said=said(d, pid).splitlines()[0])


def altered():
    "Files that somebody has truncated or changed"
    d = Path(tempfile.mkdtemp())
    res, _ = complete(d)
    a, b = sorted(p for p in (d/'tasks').glob('*.safetensors') if p.stem != 'first_look')[:2]
    a.write_bytes(a.read_bytes()[:-7])
    raw = bytearray(b.read_bytes())
    raw[-3] ^= 4
    b.write_bytes(raw)
    again, begun = complete(d)
    assert again == res and len(begun) == 2 and all(p.with_suffix('.bad').exists() for p in (a, b))
    pid = fork(predict, d, epochs=2, lr=.5)
    assert wait(pid) == 1
    return dict(said=said(d, pid).splitlines()[0])


def in_time(seconds):
    "A run with too little time"
    d, t, one = Path(tempfile.mkdtemp()), time.time(), run.run_task
    res, tasks, _ = whole()
    many = dict(planner='online', Q=60, quantile=.5, views=0., rule='conditional', V=0)
    schedule.run_task = lambda r, task: (time.sleep(.15), one(r, task))[1]
    t = time.time()
    r = cli_predict(**DATA, **{**SETTINGS, **many, 'progress': False, 'minutes': seconds/60})
    took = time.time()-t
    left = [i for q in r.unfinished for i in r.plan[q].members]
    assert r.second.isnan().any(1).sum() == len(left) and torch.equal(r.preds[left], r.first.argmax(1)[left])
    return dict(took=took, left=len(r.unfinished), tasks=len(r.plan), said=repr(r))


def soak(tasks, warm):
    "A long run in one process: memory, files, threads and hooks"
    d = Path(tempfile.mkdtemp())
    def long(d):
        def now():
            rss = next(int(o.split()[1]) for o in open('/proc/self/status') if o.startswith('VmRSS'))
            return dict(rss=rss, files=len(os.listdir('/proc/self/fd')), threads=len(os.listdir('/proc/self/task')))
        torch.manual_seed(0)
        x, y, seen = torch.randn(2000, 8), torch.arange(2000) % 8, {}
        net = torch.nn.Sequential(torch.nn.Linear(8, 8))
        data = [torch.utils.data.TensorDataset(x[:n], y[:n]) for n in (160, tasks)]
        def progress(done, total, comment):
            if done in (warm, tasks): seen[done] = now()
        before = now()
        res = cli_predict(net, *data, preset='paper', planner='online', eps=1., K=2, epochs=1, bs=64, lam=0, device='cpu', store=d/'tasks', progress=progress)
        hooks = sum(len(m._forward_hooks)+len(m._forward_pre_hooks)+len(m._backward_hooks) for m in net.modules())
        (d/'soak').write_text(json.dumps(dict(tasks=len(res.plan), warm=seen[warm], end=seen[tasks], before=before, after=now(), hooks=hooks)))
    pid = fork(long, d)
    assert wait(pid) == 0, said(d, pid)
    return json.loads((d/'soak').read_text())


if __name__ == '__main__':
    torch.set_num_threads(1)
    DATA, SCENES = problem(), dict(killed=killed, killed_writing=killed_writing, together=together, full=full, readonly=readonly, altered=altered, in_time=in_time, soak=soak)
    for line in sys.stdin:
        name, args = json.loads(line)
        with tempfile.TemporaryDirectory() as tempfile.tempdir:
            Path(tempfile.tempdir).chmod(0o755)
            try: answer = SCENES[name](*args)
            except BaseException: answer = dict(failed=traceback.format_exc())
        tempfile.tempdir = None
        print(json.dumps(answer), flush=True)
    sys.exit()

# ---- what asks it

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays


@pytest.fixture(scope='module')
def ask():
    env = {**os.environ, 'OMP_NUM_THREADS': '1'}
    p = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    def f(name, *args):
        p.stdin.write(json.dumps([name, args])+'\n')
        p.stdin.flush()
        answer = json.loads(p.stdout.readline())
        assert 'failed' not in answer, answer['failed']
        return answer
    yield f
    p.stdin.close()
    p.wait()


pytestmark = pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked here')


def test_killed_at_any_moment(ask):
    got = ask('killed', 20)
    assert len(got['there']) == 20 and len(set(got['there'])) > 3   # in the first look, between tasks, in tasks


@pytest.mark.parametrize('n', [0, 1, 3, 5, 6, 8])
def test_killed_while_it_writes(ask, n): ask('killed_writing', n)   # manifest and answers of the network as it came, manifest and training further, manifest, the first look, the first task, the third


def test_four_processes_and_one_is_killed(ask):
    got = ask('together', 4)
    assert got['begun'] in (got['tasks'], got['tasks']+1) and got['busy'] >= 3


def test_a_full_disk(ask):
    got = ask('full')
    assert got['said'].startswith('ValueError: store ') and 'cannot be written to (file too large): finished tasks are kept' in got['said'] and not got['left']


def test_a_store_that_cannot_be_written_to(ask):
    assert 'cannot be written to (permission denied)' in ask('readonly')['said']


def test_altered_files_and_other_settings(ask):
    said = ask('altered')['said']
    assert 'epochs=1, not 2' in said and 'lr=0.05, not 0.5' in said and 'choose another folder' in said


def test_it_stops_in_time(ask):
    got = ask('in_time', 4)
    assert 3.6 <= got['took'] <= 4.4 and 5 < got['left'] < got['tasks'] and 'had no time' in got['said'], got


def test_a_long_run_leaks_nothing(ask):
    got = ask('soak', 500, 150)
    assert got['tasks'] == 500 and got['hooks'] == 0
    assert got['end']['rss'] < 1.05*got['warm']['rss'] and got['end']['files'] == got['warm']['files'] and got['end']['threads'] == got['warm']['threads'], got
    assert got['after']['files'] <= got['before']['files']+2 and got['after']['threads'] <= got['before']['threads'], got


# ---- what a store is for


def small():
    "A network, training and test points"
    torch.manual_seed(0)
    x, y = torch.randn(60, 5), torch.arange(60) % 6
    return torch.nn.Sequential(torch.nn.Linear(5, 6)), *(torch.utils.data.TensorDataset(x[:n], y[:n]) for n in (60, 20))


def test_loader_processes_are_part_of_what_was_computed(tmp_path):
    "They draw other random numbers, so that tasks of both kinds would be of two runs"
    kw = dict(preset='paper', K=2, Q=2, quantile=.5, epochs=1, device='cpu', progress=False, store=tmp_path/'tasks')
    cli_predict(*small(), num_workers=1, **kw)
    with pytest.raises(ValueError, match='holds tasks with processes=True, not False: go back to what it was'): cli_predict(*small(), num_workers=0, **kw)


def test_a_function_is_known_by_its_name(tmp_path):
    "Its address is another in each process"
    def made(f): return make_manifest(open_problem(*small()), make_config('paper', K=2, shift=f))
    def one():
        def shift(problem, cfg, device): return None
        return shift
    def two(problem, cfg, device): return None
    assert one() is not one() and made(one()) == made(one()) and 'shift' in made(one())['shift'] and '0x' not in made(one())['shift']
    TaskStore(tmp_path, made(one()))
    TaskStore(tmp_path, made(one()))
    with pytest.raises(ValueError, match='two'): TaskStore(tmp_path, made(two))


def test_a_store_that_is_a_file(tmp_path):
    (tmp_path/'tasks').touch()
    with pytest.raises(ValueError, match=r"^store '.*/tasks' is a file: expected a folder, or a new name$"): cli_predict(*small(), K=2, device='cpu', progress=False, store=tmp_path/'tasks')


# ---- properties

quick = settings(max_examples=40, deadline=None)
logits = st.integers(2, 7).flatmap(lambda C: st.integers(1, 25).flatmap(lambda n: arrays(np.float32, (n, C), elements=st.floats(-30, 30, width=32))))


@quick
@given(logits, st.data())
def test_every_hard_image_is_in_one_task(z, data):
    n, C = z.shape
    hard = torch.tensor(sorted(data.draw(st.sets(st.integers(0, n-1)))), dtype=torch.long)
    K, Q, merge = data.draw(st.integers(1, C)), data.draw(st.integers(1, 9)), data.draw(st.booleans())
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        plan = make_plan(torch.tensor(z), hard, data.draw(st.sampled_from(['kmeans', 'online', 'coverage'])), K, Q, 0, merge)
    assert sorted(plan.members) == hard.tolist()
    assert all(len(t.classes) == len(set(t.classes)) == K and set(t.classes) <= set(range(C)) for t in plan)
    probs = torch.tensor(z).softmax(1)
    for order in (schedule.order_tasks(plan), schedule.by_worth(plan, probs), schedule.by_worth(plan, probs, list(range(1, C+1)))):
        assert sorted(map(id, order)) == sorted(map(id, plan))   # an order loses nothing and adds nothing


@quick
@given(logits, st.data())
def test_worth_is_the_probability_of_the_others(z, data):
    n, C = z.shape
    t = Task(data.draw(st.lists(st.integers(0, n-1), min_size=1, unique=True)), data.draw(st.lists(st.integers(0, C-1), unique=True)))
    e = np.exp(z.astype(float)-z.max(1, keepdims=True).astype(float))
    p = e/e.sum(1, keepdims=True)
    by_hand = sum(p[i, c] for i in t.members for c in t.classes if c != int(torch.tensor(z)[i].softmax(0).argmax()))
    assert abs(schedule.mendable(t, torch.tensor(z).softmax(1))-by_hand) < 1e-4


@quick
@given(logits, st.data())
def test_rules_give_probabilities(z, data):
    n, C = z.shape
    z0, z1 = torch.tensor(z), torch.tensor(data.draw(arrays(np.float32, (n, C), elements=st.floats(-30, 30, width=32))))
    S = torch.tensor(data.draw(arrays(bool, (n, C))))
    S[torch.arange(n), z0.argmax(1)] = True   # a task without classes has no rule
    a, T = data.draw(st.floats(0, 1)), data.draw(st.floats(.5, 4))
    def p(rule, **kw): return decide(z0, z1, S, rule, **kw)
    for rule in ('paper', 'gated', 'blend', 'restrict', 'conditional', 'validated'):
        q = p(rule, alpha=a, T=T)
        assert q.shape == z0.shape and (q >= 0).all() and torch.allclose(q.sum(1), torch.ones(n), atol=1e-4), rule
    p0, p1 = z0.softmax(1), z1.softmax(1)
    assert torch.equal(p('paper'), p1) and torch.allclose(p('blend', alpha=0.), p0, atol=1e-5) and torch.allclose(p('blend', alpha=1.), p1, atol=1e-5)
    assert (p('restrict')[~S] == 0).all() and torch.allclose(p('conditional', alpha=0.), p0, atol=1e-4)
    assert torch.allclose(p('conditional', alpha=a, T=T)[~S], p0[~S]) and torch.equal(p('gated'), p1)   # S holds each first answer
    worse = z1.clone()
    worse[0, 0] = float('nan')
    assert torch.allclose(decide(z0, worse, S, 'paper')[0], p0[0])   # what diverged does not count


@quick
@given(st.integers(0, 40).flatmap(lambda n: st.tuples(*[arrays(np.int64, n, elements=st.integers(0, 3))]*3)))
def test_fates_add_up(abc):
    first, final, y = abc
    f, each = flips(*map(torch.tensor, abc)), fates(first, final, y)
    was, now = first == y, final == y
    assert (f.F2T, f.T2F, f.F2F, f.T2T) == tuple(int(o.sum()) for o in (~was & now, was & ~now, ~was & ~now, was & now))
    assert f.N == len(y) and f.N*(f.after-f.before) == pytest.approx(f.F2T-f.T2F) and f.gain == pytest.approx(f.after-f.before)
    assert len(each) == len(y) and all(('T' if w else 'F')+'2'+('T' if n else 'F') == e for w, n, e in zip(was, now, each))


values = st.one_of(st.none(), st.booleans(), st.integers(-10, 10), st.text(max_size=5), st.floats(allow_nan=False), st.lists(st.integers(0, 3), max_size=3))


@quick
@given(st.dictionaries(st.text(min_size=1, max_size=5), values, min_size=1, max_size=6), st.data())
def test_a_manifest_is_taken_as_it_was_and_refused_otherwise(m, data):
    m = json.loads(json.dumps(m))
    key, value = data.draw(st.sampled_from(sorted(m))), data.draw(values)
    with tempfile.TemporaryDirectory() as d:
        a, b = TaskStore(d, m), TaskStore(d, dict(reversed(m.items())))   # the order says nothing
        assert a.path(Task([0], [1])) == b.path(Task([0], [1]))
        if json.loads(json.dumps(value)) == m[key]: return
        with pytest.raises(ValueError) as e: TaskStore(d, {**m, key: value})
        assert f'{key}={m[key]!r}, not {value!r}' in str(e.value)


numbers = arrays(np.float32, (3, 4), elements=st.floats(width=32))


@quick
@given(numbers, numbers, st.booleans(), st.integers(0, 10**9), st.integers(0, 7))
def test_looks_come_back_to_the_bit_or_not_at_all(a, b, probes, where, bit):
    looks = Looks(torch.tensor(a), torch.tensor(b) if probes else None, seconds=1.5)
    task, other = Task([4, 1, 7], [2, 0], [5]), Task([4, 1, 7], [0, 2], [5])
    with tempfile.TemporaryDirectory() as d, TaskStore(d, dict(x=1)) as s:
        s.save(task, looks)
        got = s.load(task)
        assert s.load(other) is None and got.seconds == 1.5 and (got.probes is None) == (not probes)
        assert got.second.numpy().tobytes() == a.tobytes() and (not probes or got.probes.numpy().tobytes() == b.tobytes())
        f = s.path(task)
        raw = bytearray(f.read_bytes())
        raw[where % len(raw)] ^= 1 << bit
        f.write_bytes(raw)
        with warnings.catch_warnings(record=True) as w:
            warnings.simplefilter('always')
            got = s.load(task)
        # a flip in the spaces that fill the header changes nothing; any other is seen
        assert got is None and f.stem in str(w[-1].message) or got.second.numpy().tobytes() == a.tobytes()
