"Tasks on Ray: the same answers as in one process, whatever dies meanwhile"
import importlib.util, os, signal, sys, time
from functools import cache
from pathlib import Path

import pytest
import torch
from fastai.callback.core import Callback
from torch import nn
from torch.utils.data import TensorDataset

from closed_loop import cluster as module
from closed_loop.core import cli_predict
from closed_loop.data.glyphs import glyph_classes, glyphs

needs_ray = pytest.mark.skipif(importlib.util.find_spec('ray') is None, reason='Ray is not installed')
C, D = 8, 12
TINY = dict(preset='paper', quantile=.5, K=3, Q=6, epochs=2, bs=32, progress=False, device='cpu')


@pytest.fixture(autouse=True)
def in_time():
    "A worker that never answers must not hold up everything"
    def late(*_): raise TimeoutError('more than four minutes')
    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(240)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)


def blobs(n, seed):
    "Points around eight centres"
    g, y = torch.Generator().manual_seed(seed), torch.arange(n) % C
    return TensorDataset(3*torch.eye(C, D)[y] + 1.3*torch.randn(n, D, generator=g), y)


@cache
def tiny():
    "A small network, its training and test points"
    torch.manual_seed(0)
    net, train = nn.Sequential(nn.Linear(D, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, C)), blobs(400, 0)
    opt = torch.optim.Adam(net.parameters(), .01)
    for _ in range(30): opt.zero_grad(); nn.functional.cross_entropy(net(train.tensors[0]), train.tensors[1]).backward(); opt.step()
    return net.eval(), train, blobs(120, 1)


@cache
def serial(**kw): return cli_predict(*tiny(), **{**TINY, **kw})


def identical(a, b):
    "Both looks of all images and probes, to the bit"
    def same(x, y): return x is y is None or torch.equal(x, y)
    pairs = [(a.first, b.first), (a.second, b.second), (a.first_tta, b.first_tta), (a.preds, b.preds)]
    if a.probes: pairs += [(getattr(a.probes, k), getattr(b.probes, k)) for k in vars(a.probes) if isinstance(getattr(a.probes, k), torch.Tensor)]
    return len(a.hard) > 0 and a.plan == b.plan and all(same(x, y) for x, y in pairs)


class InFolder(Callback):
    "Runs in workers, which know it by value; the folder is what they and the test see"
    def __init__(self, path): self.path = Path(path)
    def first(self, name):
        "True for the first that asks"
        try: os.close(os.open(self.path/name, os.O_CREAT | os.O_EXCL))
        except FileExistsError: return False
        return True


class Signs(InFolder):
    "Leaves a file for each task, named after the machine that computes it, and waits until both machines have one"
    def before_fit(self):
        import ray, uuid
        (self.path/f'{ray.get_runtime_context().get_node_id()}.{uuid.uuid4().hex}').touch()
        for _ in range(600):
            if len({f.name.split('.')[0] for f in self.path.iterdir()}) == 2: return
            time.sleep(.1)


class Dies(InFolder):
    "The first tasks kill their process"
    def __init__(self, path, times): super().__init__(path); self.times = times
    def after_step(self):
        if any(self.first(f'death{i}') for i in range(self.times)): os.kill(os.getpid(), signal.SIGKILL)


class Hangs(InFolder):
    "The first task on one machine does not end, and none on the other ends before that"
    def __init__(self, path, node): super().__init__(path); self.node = node
    def before_fit(self):
        import ray
        if ray.get_runtime_context().get_node_id() == self.node and self.first('hangs'): time.sleep(60)
        for _ in range(600):
            if (self.path/'hangs').exists(): return
            time.sleep(.1)


class Complains(Callback):
    def before_fit(self): raise ValueError('no such luck: expected some')


@pytest.fixture(scope='module')
def machines():
    "Two machines of one core each, as Ray sees it"
    import ray
    from ray.cluster_utils import Cluster
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    one = dict(num_cpus=1, object_store_memory=80*2**20, include_dashboard=False)
    cluster = Cluster(initialize_head=True, head_node_args=one)
    cluster.second = cluster.add_node(**{k: v for k, v in one.items() if k != 'include_dashboard'})
    threads = torch.get_num_threads()
    torch.set_num_threads(1)   # a worker for each core
    yield cluster
    torch.set_num_threads(threads)
    ray.shutdown()
    cluster.shutdown()
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, 'ray', None)
    with pytest.raises(ImportError, match=r"^executor='ray' needs Ray, which is not installed: pip install closed_loop\[ray\], or"):
        cli_predict(*tiny(), executor='ray', **TINY)


# before those on a cluster: Ray 2.60 loses the workers of a process that comes back to a cluster from another
@needs_ray
def test_glyphs_on_a_ray_of_our_own(tmp_path, monkeypatch):
    "Kept activations, views, probes and loader processes; the store is the same for all executors"
    import ray
    some = glyph_classes()[:12]
    data = [glyphs(n, split=s, classes=some) for n, s in ((12, 'train'), (4, 'test'))]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 5, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                        nn.Flatten(), nn.Linear(32, len(some))).eval()
    opt = torch.optim.Adam(net.train().parameters(), 1e-2)
    for x, y in [b for _ in range(3) for b in torch.utils.data.DataLoader(data[0], 16, shuffle=True)]:   # sure enough for more than one task
        opt.zero_grad(); nn.functional.cross_entropy(net(x), y).backward(); opt.step()
    net.eval()
    kw = dict(K=4, cover=None, Q=3, epochs=2, bs=16, holdout=.2, threads=1, generalist=20, num_workers=1, progress=False, device='cpu')
    a, b = cli_predict(net, *data, **kw), cli_predict(net, *data, executor='ray', store=tmp_path/'store', **kw)
    assert identical(a, b) and a.probes and a.cfg.views and a.further.kept
    assert not ray.is_initialized()
    monkeypatch.setattr('closed_loop.schedule.run_task', None)   # nothing is left to compute
    assert identical(a, cli_predict(net, *data, store=tmp_path/'store', **kw)) and len(a.plan) > 1


@needs_ray
def test_nobody_at_the_address():
    with pytest.raises(ValueError, match=r"^address='localhost:1' is no Ray cluster that can be joined \(.*refused\): expected 'auto', or host:port"):
        cli_predict(*tiny(), executor='ray', address='localhost:1', **TINY)


@needs_ray
def test_two_machines_answer_as_one_process(machines, tmp_path):
    import ray
    net = tiny()[0]
    before, handler = {k: v.clone() for k, v in net.state_dict().items()}, signal.getsignal(signal.SIGTERM)
    res = cli_predict(*tiny(), executor='ray', address=machines.address, cbs=[Signs(tmp_path)], **TINY)
    assert identical(serial(), res)
    files = [f.name.split('.')[0] for f in tmp_path.iterdir()]
    assert len(files) == len(res.plan) == 6, 'a task was computed twice'
    assert len(set(files)) == 2, 'a machine had nothing to do'
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert not ray.is_initialized() and signal.getsignal(signal.SIGTERM) is handler


@needs_ray
def test_a_worker_killed_twice(machines, tmp_path):
    res = cli_predict(*tiny(), executor='ray', address=machines.address, cbs=[Dies(tmp_path, 2)], **TINY)
    assert len(list(tmp_path.iterdir())) == 2
    assert identical(serial(), res)


@needs_ray
def test_what_a_task_raises_and_a_callers_own_ray(machines, tmp_path, monkeypatch):
    import ray
    ray.init(machines.address, log_to_driver=False)
    said = []
    for who in ('local', 'ray'):
        with pytest.raises(ValueError, match='no such luck: expected some$') as e: cli_predict(*tiny(), executor=who, cbs=[Complains()], **{**TINY, 'Q': 1})
        said.append(str(e.value))
    assert said[0] == said[1]
    monkeypatch.setattr(module, '_RETRIES', 0); monkeypatch.setattr(module, '_TRIES', 1)
    with pytest.raises(RuntimeError, match='^1 Ray workers were lost at the same task .*: they may need more memory'):
        cli_predict(*tiny(), executor='ray', cbs=[Dies(tmp_path, 9)], **{**TINY, 'Q': 1})
    with pytest.raises(ValueError, match='in a Ray cluster already'): cli_predict(*tiny(), executor='ray', address='auto', **TINY)
    assert ray.is_initialized()   # it is the caller's
    ray.shutdown()


@needs_ray
def test_a_machine_lost(machines, tmp_path):
    "Its worker waits for a place until another worker has nothing left to do"
    node = machines.second.node_id
    def lose(done, total, comment):
        if done == 1: machines.remove_node(machines.second, allow_graceful=False)
    res = cli_predict(*tiny(), executor='ray', address=machines.address, cbs=[Hangs(tmp_path, node)], **{**TINY, 'progress': lose})
    assert (tmp_path/'hangs').exists() and identical(serial(), res)
