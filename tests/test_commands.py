"The commands, run as people run them"
import importlib.util, itertools, json, os, re, resource, shutil, signal, subprocess, sys, time
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import models

from closed_loop import commands
from closed_loop.commands import closed_loop_corrupt, closed_loop_demo, closed_loop_experiment, closed_loop_predict
from closed_loop.config import CHOICES, register
from closed_loop.data.folders import folder_datasets
from closed_loop.paper.networks import network
from closed_loop.result import CLIResult, load_result
from closed_loop.safely import LOCK

BIN = Path(sys.executable).parent
COLOURS = dict(blue=(40, 60, 200), green=(50, 180, 60), red=(200, 40, 50))


def make_images(folder, n, rng):
    folder.mkdir(parents=True)
    for i in range(n):
        a = rng.normal(0, 60, (40, 36, 3)) + np.array(COLOURS[folder.name])
        Image.fromarray(a.clip(0, 255).astype('uint8')).save(folder/f'{i}.jpg')


@pytest.fixture(scope='module')
def images(tmp_path_factory):
    d, rng = tmp_path_factory.mktemp('images'), np.random.default_rng(0)
    for c in COLOURS:
        make_images(d/'train'/c, 12, rng)
        make_images(d/'test'/c, 4, rng)
    torch.save(fitted(d/'train').state_dict(), d/'w.pth')
    return d


@torch.no_grad()
def fitted(folder):
    "A network that knows these images, from random features and one step of least squares"
    torch.manual_seed(0)
    net = models.shufflenet_v2_x0_5(num_classes=3, weights=None)
    x, y = zip(*folder_datasets(folder, size=32, aug=False)[0])
    x, fc, net.fc = torch.stack(x), net.fc, nn.Identity()
    for _ in range(30): net(x)   # statistics of BatchNorm
    f = net.eval()(x)
    u = f-f.mean(0)
    w = torch.linalg.solve(u.T@u + 1e-3*torch.eye(u.shape[1]), u.T@(nn.functional.one_hot(torch.tensor(y), 3)*6.-2)).T
    fc.weight[:], fc.bias[:], net.fc = w, -w@f.mean(0), fc
    return net


NEW = itertools.count()


def args(d, **kw):
    a = dict(train=str(d/'train'), test=str(d/'test'), arch='shufflenet_v2_x0_5', weights=str(d/'w.pth'), size=32, preset='paper', Q=2, K=2, epochs=1, eps=1., bs=16, out=str(d/f'out{next(NEW)}'))   # tasks of other settings are refused
    return {**a, **kw}


def typed(a): return [o for k, v in a.items() for o in (f'--{k}', str(v))]


def run(*cmd):
    "A command as people start it, who did not ask for other libraries' warnings"
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONWARNINGS'}
    return subprocess.run([str(o) for o in cmd], capture_output=True, text=True, env=env)


def test_predict_writes_what_it_promises(images):
    res = run(BIN/'closed_loop_predict', *typed(args(images, out=images/'out')), '--skip-bad')
    assert res.returncode == 0, res.stderr
    assert res.stderr == ''
    df = pd.read_csv(images/'out/predictions.csv')
    assert list(df.columns) == ['path', 'first', 'first_confidence', 'final', 'final_confidence', 'task', 'target']
    assert len(df) == 12 and set(df.target) == set(COLOURS) and df.path.map(lambda p: Path(p).exists()).all()
    assert [Path(p).parent.name for p in df.path] == list(df.target)
    assert df.final_confidence.between(0, 1).all() and set(df.task) <= {-1, 0, 1}
    assert 'The four fates' in (images/'out/index.html').read_text(encoding='utf-8') and 'report:' in res.stdout


@pytest.mark.skipif(importlib.util.find_spec('ray') is None, reason='Ray is not installed')
def test_ray_answers_as_one_process(images, tmp_path):
    a = args(images, threads='1', num_workers=0)
    closed_loop_predict(**{**a, 'out': str(tmp_path/'serial')})
    res = run(BIN/'closed_loop_predict', *typed({**a, 'out': tmp_path/'ray', 'executor': 'ray'}))
    assert res.returncode == 0 and res.stderr == '', res.stderr
    one, many = (pd.read_csv(tmp_path/k/'predictions.csv') for k in ('serial', 'ray'))
    pd.testing.assert_frame_equal(one, many)
    assert len(many) == 12 and (many.task >= 0).any() and (many['final_confidence'] != many['first_confidence']).any()


def test_only_our_own_warnings_are_seen(images):
    res = run(BIN/'closed_loop_predict', *typed(args(images, preset='default', out=images/'few')))
    assert res.returncode == 0, res.stderr
    said = res.stderr.splitlines()
    assert len(said) == 1 and said[0].startswith('closed_loop: only ') and 'pass --calib DIR, raise --settings holdout=…, or choose --rule conditional' in said[0], res.stderr


@pytest.mark.parametrize('name', ['demo', 'predict', 'experiment', 'corrupt'])
@pytest.mark.parametrize('option,code', [('--help', 0), ('--no-such-option', 2), ('--skip_bad', 2)], ids=['help', 'unknown', 'missing'])
def test_options_are_read_before_anything_heavy_is_imported(name, option, code):
    res = run(sys.executable, '-X', 'importtime', BIN/f'closed_loop_{name}', option)
    loaded = set(re.findall(r'^import time:.*\| +(\w+)', res.stderr, re.M))
    assert res.returncode == code, res.stderr
    assert {'closed_loop', 'fastcore'} <= loaded
    assert not loaded & {'torch', 'torchvision', 'fastai', 'sklearn', 'pandas', 'numpy', 'matplotlib', 'timm'}


def test_default_preset_with_a_calibration_folder(images):
    closed_loop_predict(**args(images, preset='default', calib=str(images/'train'), out=str(images/'calib')))
    run = json.loads((images/'calib/run.json').read_text())
    assert run['cfg']['rule'] == 'validated' and (images/'calib/predictions.csv').exists()


def test_a_dry_run_trains_nothing_and_names_the_price(images, capsys):
    closed_loop_predict(**args(images, out=str(images/'dry'), dry_run=True))
    out = capsys.readouterr().out
    assert not (images/'dry').exists() and '12 of 12 images are hard; 2 tasks' in out and 's per test image' in out


def test_decoded_images_give_the_same_first_answers(images):
    for k, gb in (('a', 0.), ('b', 1.)): closed_loop_predict(**args(images, preset='default', calib=str(images/'train'), decode=gb, out=str(images/k)))
    a, b = (pd.read_csv(images/k/'predictions.csv') for k in 'ab')
    assert a['first'].equals(b['first']) and (a.first_confidence-b.first_confidence).abs().max() < 1e-5


def test_a_flat_folder_without_labels(images, tmp_path):
    for i, p in enumerate(sorted((images/'test').glob('*/*.jpg'))): shutil.copy(p, tmp_path/f'{i:02}.jpg')
    closed_loop_predict(**args(images, test=str(tmp_path), out=str(images/'flat')))
    df = pd.read_csv(images/'flat/predictions.csv')
    assert 'target' not in df and len(df) == 12


@pytest.mark.parametrize('kw,says', [
    (dict(train='nowhere'), 'nowhere'), (dict(arch='resnet19'), '--arch resnet19'), (dict(weights='nothing.pth'), 'nothing.pth'),
    (dict(K=9), '--K 9'), (dict(eps=2.), '--eps 2.0'), (dict(layers='layer7'), 'layer7'), (dict(Q=0), '--Q 0'), (dict(train=None), '--train missing'),
    (dict(preset='fast'), '--preset fast'), (dict(bn='half'), '--bn half'), (dict(subset='best'), '--subset best'), (dict(threads='many'), '--threads many'),
    (dict(seed=-1), '--seed -1: expected'), (dict(seed=2**32), '--seed 4294967296: expected'), (dict(num_workers=-1), '--num-workers -1: expected'),
    (dict(size=0), '--size 0'), (dict(decode=-1., preset='default'), '--decode -1.0'), (dict(mean='a'), '--mean a: expected'), (dict(mean='.1,.2'), '--mean 0.1,0.2: expected'),
    (dict(std='0'), '--std 0.0: expected'), (dict(interpolation='cubic'), '--interpolation cubic'), (dict(settings='Z=1'), 'Z=1 is not a setting'),
    (dict(settings='views=2'), '--settings views=2 is outside'), (dict(settings='merge'), "'merge' is not a setting")])
def test_what_is_wrong_is_said_in_one_sentence(images, capsys, kw, says):
    with pytest.raises(SystemExit) as e: closed_loop_predict(**args(images, **kw))
    err = capsys.readouterr().err.strip()
    assert e.value.code == 2 and says in err and '\n' not in err and err.startswith('closed_loop: ')


def test_an_unreadable_image_is_named_or_skipped(images, tmp_path, capsys):
    shutil.copytree(images/'train', tmp_path/'train')
    bad = tmp_path/'train/red/3.jpg'
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(SystemExit): closed_loop_predict(**args(images, train=str(tmp_path/'train'), K=3))
    err = capsys.readouterr().err
    assert str(bad) in err and 'pass --skip-bad' in err and 'skip_bad' not in err
    closed_loop_predict(**args(images, train=str(tmp_path/'train'), K=3, skip_bad=True, out=str(tmp_path/'out')))
    assert str(bad) in ''.join(capsys.readouterr()) and (tmp_path/'out/predictions.csv').exists()


# Nothing lost

def never(*args, **kwargs): raise AssertionError('the first look was taken')


def said_by(f, capsys, **kwargs):
    "Exit code and stderr of a command that is called"
    try: f(**kwargs)
    except SystemExit as e: return e.code, capsys.readouterr().err
    return 0, capsys.readouterr().err


@pytest.mark.parametrize('where,says', [
    ('file', 'is a file: expected a folder'), ('file/below', 'not a directory'), ('thesis', "holds other files, such as 'thesis.tex'"),
    ('data/test/out', 'lies in --test'), ('data/train', 'lies in --train'), ('full', 'cannot be written to (')])
def test_a_folder_to_write_to_is_tried_before_the_first_look(images, tmp_path, capsys, where, says):
    (tmp_path/'file').touch()
    (tmp_path/'thesis').mkdir()
    (tmp_path/'thesis/thesis.tex').touch()
    data = Path(shutil.copytree(images, tmp_path/'data'))
    kw = args(data, out=str(tmp_path/where))
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    if where == 'full': resource.setrlimit(resource.RLIMIT_FSIZE, (0, old[1]))   # as on a full disk
    try:
        with mock.patch('closed_loop.core.cli_predict', never): code, err = said_by(closed_loop_predict, capsys, **kw)
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert code == 2 and says in err and err.count('\n') == 1 and err.startswith(f"closed_loop: --out '{tmp_path/where}' ")
    assert not list(tmp_path.rglob(LOCK)) and not (tmp_path/'full').exists()
    assert [p.name for p in (tmp_path/'thesis').iterdir()] == ['thesis.tex']


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write anywhere')
def test_an_unwritable_folder(images, tmp_path, capsys):
    tmp_path.chmod(0o500)
    with mock.patch('closed_loop.core.cli_predict', never): code, err = said_by(closed_loop_predict, capsys, **args(images, out=str(tmp_path)))
    tmp_path.chmod(0o700)
    assert code == 2 and 'cannot be written to (permission denied)' in err


def test_it_is_tried_before_torch_is_imported(images):
    res = run(sys.executable, '-X', 'importtime', BIN/'closed_loop_predict', *typed(args(images, out=images/'w.pth')))
    assert res.returncode == 2 and 'is a file' in res.stderr and not re.search(r'^import time:.*\| +torch', res.stderr, re.M)


def test_other_files_stay_and_are_written_beside_if_wanted(images, tmp_path):
    (tmp_path/'thesis.tex').write_text('x')
    closed_loop_predict(**args(images, out=str(tmp_path), overwrite=True))
    closed_loop_predict(**args(images, out=str(tmp_path)))   # now it is ours
    assert (tmp_path/'thesis.tex').read_text() == 'x' and (tmp_path/'predictions.csv').exists() and not (tmp_path/LOCK).exists()


def test_two_processes_do_not_share_a_folder(images, tmp_path, capsys):
    code = 'import sys, time; from closed_loop.safely import out_folder\nwith out_folder(sys.argv[1]): print(flush=True); time.sleep(600)'
    p = subprocess.Popen([sys.executable, '-c', code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        p.stdout.readline()
        with mock.patch('closed_loop.core.cli_predict', never):
            code, err = said_by(closed_loop_predict, capsys, **args(images, out=str(tmp_path)))
            assert code == 2 and f'is being written to by process {p.pid} on ' in err and err.count('\n') == 1
            assert (tmp_path/LOCK).exists()
            p.kill()
            p.wait()
            code, err = said_by(closed_loop_predict, capsys, **args(images, out=str(tmp_path)))
    finally: p.kill()
    assert 'the first look was taken' in err and not (tmp_path/LOCK).exists()


def test_the_same_command_in_two_terminals(images, tmp_path):
    cmd = [BIN/'closed_loop_predict', *typed(args(images, out=tmp_path/'o', Q=4))]
    ps = [subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [p.communicate(timeout=300) for p in ps]
    assert [p.returncode for p in ps] == [0, 0] and all('report: ' in out for out, _ in said), said
    n = len(load_result(tmp_path/'o').plan)
    assert len(list((tmp_path/'o/tasks').glob('*.safetensors'))) == n+1 and not list(tmp_path.rglob('*.claim')) and not (tmp_path/'o'/LOCK).exists()
    res = run(*cmd, '--rule', 'blend')   # rules are computed from what is kept
    assert res.returncode == 0 and f'{n} of {n} tasks were there' in res.stdout
    res = run(*cmd, '--epochs', '2')
    assert res.returncode == 2 and '--epochs 1, not 2' in res.stderr and res.stderr.count('\n') == 1


STRANGE = ['a\udcff.jpg', 'b\nc.jpg', 'd\re.jpg', 'naïve, "→".jpg']   # the first is not UTF-8


@pytest.fixture(scope='module')
def strange(images, tmp_path_factory):
    "A run with strange names of files and classes, in a log that knows ASCII only, with files that are no images"
    d = tmp_path_factory.mktemp('strange')
    for k in ('train', 'test'):
        shutil.copytree(images/k, d/k)
        os.rename(d/k/'red', d/k/'red\udcfe$ $')
        for n in ('x.gif', 'y.GIF', '.hidden.gif', 'notes'): (d/k/'blue'/n).touch()
    shutil.copy(d/'train/blue/0.jpg', d/'train/loose.jpg')
    for i, n in enumerate(STRANGE): os.rename(d/f'test/green/{i}.jpg', d/'test/green'/n)
    a = args(images, train=d/'train', test=d/'test', out=d/'out')
    env = {**{k: v for k, v in os.environ.items() if k != 'PYTHONWARNINGS'}, 'PYTHONIOENCODING': 'ascii'}
    res = subprocess.run([BIN/'closed_loop_predict', *(os.fsencode(o) for o in typed(a))], capture_output=True, env=env)
    assert res.returncode == 0, res.stderr
    return d, res.stdout.decode('ascii'), res.stderr.decode('ascii')


def test_strange_names_reach_the_end(strange):
    d, out, err = strange
    paths = [str(d/'test/green'/n) for n in STRANGE]
    res = load_result(d/'out')
    assert set(paths) <= set(res.paths) and all(os.path.exists(p) for p in res.paths) and 'red\udcfe$ $' in res.vocab
    df = pd.read_csv(d/'out/predictions.csv', encoding_errors='surrogateescape')
    assert df.path.tolist() == res.paths and 'red\udcfe$ $' in set(df.target)
    assert os.fsencode(paths[0]) in (d/'out/predictions.csv').read_bytes()
    assert 'The four fates' in (d/'out/index.html').read_text(encoding='utf-8') and 'report: ' in out


def test_files_that_are_not_taken_are_counted(strange):
    train, test = (o for o in strange[2].splitlines() if 'not taken' in o)
    assert train == "closed_loop: --train not taken: 1 \\xd7 no suffix (such as 'blue/notes'), 2 \\xd7 .gif (such as 'blue/x.gif'), 1 \\xd7 loose image (such as 'loose.jpg')"
    assert test == "closed_loop: --test not taken: 1 \\xd7 no suffix (such as 'blue/notes'), 2 \\xd7 .gif (such as 'blue/x.gif')"


def test_a_log_shows_progress_and_what_was_used(strange):
    lines = strange[1].splitlines()
    assert lines[0].startswith('images: 32 pixels') and 'mean 0.485 0.456 0.406' in lines[0]
    assert sum(bool(re.match(r'2 of 2 tasks, \d+ s', o)) for o in lines) == 1 and '\r' not in strange[1]


@pytest.mark.parametrize('f,what,argv', [
    (closed_loop_demo, 'closed_loop.data.glyphs.glyph_model', []), (closed_loop_predict, 'closed_loop.core.cli_predict', None),
    (closed_loop_experiment, 'closed_loop.paper.experiments.run_experiment', ['table1', '--scale', 'smoke']),
    (closed_loop_corrupt, 'closed_loop.data.corruptions.write_corrupted', None)], ids=['demo', 'predict', 'experiment', 'corrupt'])
@pytest.mark.parametrize('e,code,says', [
    (RuntimeError('mat1 and\n  mat2'), 2, 'RuntimeError: mat1 and mat2; --debug shows where it comes from'), (signal.SIGINT, 130, 'stopped by Ctrl-C'),
    (signal.SIGTERM, 143, 'stopped by SIGTERM'), (OSError(28, 'No space left on device', 'a.pt'), 2, "no space left on device: 'a.pt'")], ids=['error', 'ctrl-c', 'sigterm', 'disk'])
def test_every_failure_is_a_line(images, tmp_path, capsys, f, what, argv, e, code, says):
    def fail(*args, **kwargs):
        if isinstance(e, Exception): raise e
        os.kill(os.getpid(), e)
        time.sleep(5)
    to = '--dst' if f is closed_loop_corrupt else '--out'
    if argv is None: argv = ['--src', images/'test'] if f is closed_loop_corrupt else typed({k: v for k, v in args(images).items() if k != 'out'})
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    for debug in (False, True):
        with mock.patch.object(sys, 'argv', [f.__name__, *map(str, argv), to, str(tmp_path/'o')] + ['--debug']*debug), mock.patch(what, fail):
            with pytest.raises(SystemExit) as left: f()
        err = capsys.readouterr().err
        assert left.value.code == code and err.endswith(f'closed_loop: {says}\n')
        assert ('Traceback' in err and 'in fail' in err) if debug else err.count('\n') == 1
    assert not list(tmp_path.rglob(LOCK)) and [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize('num', [signal.SIGINT, signal.SIGTERM], ids=['ctrl-c', 'sigterm'])
def test_a_real_process_is_stopped_while_it_imports(images, tmp_path, num):
    p = subprocess.Popen([BIN/'closed_loop_predict', *typed(args(images, out=tmp_path/'o'))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))   # a background job ignores Ctrl-C
    for _ in range(600):
        if (tmp_path/'o').exists(): break
        time.sleep(.05)
    p.send_signal(num)
    out, err = p.communicate(timeout=120)
    assert p.returncode == 128+num and err.count('\n') == 1 and err.startswith('closed_loop: stopped by '), err
    assert not (tmp_path/'o').exists()


def test_a_stopped_run_leaves_the_network_as_it_was(images, tmp_path, capsys):
    net = network('shufflenet_v2_x0_5', 3, images/'w.pth')
    before, changed = {k: v.clone() for k, v in net.state_dict().items()}, []
    def stop(done, total, comment):
        changed.append(any(not torch.equal(v, before[k]) for k, v in net.state_dict().items()))
        os.kill(os.getpid(), signal.SIGTERM)
    with mock.patch.object(sys, 'argv', ['closed_loop_predict', *typed(args(images, out=tmp_path/'o'))]), mock.patch('closed_loop.paper.networks.network', lambda *a: net):
        with mock.patch.object(commands, '_progress', lambda: stop), pytest.raises(SystemExit) as left: closed_loop_predict()
    assert left.value.code == 143 and len(changed) == 1 and not any(changed)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    err, tasks = capsys.readouterr().err, tmp_path/'o/tasks'
    assert err == f"closed_loop: stopped by SIGTERM; the same command goes on from 1 finished task in '{tasks}'\n"
    assert sorted(p.suffix for p in tasks.iterdir()) == ['.json', '.safetensors', '.safetensors'] and [p.name for p in tasks.parent.iterdir()] == ['tasks']


def test_a_page_that_fails_loses_nothing(images, tmp_path, capsys):
    def broken(*args): raise RuntimeError('no\nfont')
    with mock.patch('closed_loop.report.write_page', broken): code, err = said_by(closed_loop_predict, capsys, **args(images, out=str(tmp_path)))
    assert code == 2 and err.splitlines()[-1] == f"closed_loop: the result is in '{tmp_path}/predictions.csv', but its page could not be written: RuntimeError: no font; --debug shows where it comes from"
    assert len(pd.read_csv(tmp_path/'predictions.csv')) == len(load_result(tmp_path)) == 12 and not (tmp_path/'index.html').exists()


def test_a_result_that_cannot_be_written_is_written_elsewhere(images, tmp_path, capsys):
    save = CLIResult.save
    def full(self, path):
        if Path(path) == tmp_path: raise OSError(28, 'No space left on device')
        return save(self, path)
    with mock.patch.object(CLIResult, 'save', full): code, err = said_by(closed_loop_predict, capsys, **args(images, out=str(tmp_path)))
    spare = Path(re.search(r"the result is in '(.*?)' instead", err)[1])
    assert code == 2 and 'cannot be written to any more (no space left on device)' in err and len(load_result(spare)) == 12
    shutil.rmtree(spare)


def test_too_little_room_is_said_before_the_first_look(images, tmp_path, capsys):
    with mock.patch('closed_loop.core.cli_predict', never), mock.patch('shutil.disk_usage', lambda p: mock.Mock(free=10**6)):
        code, err = said_by(closed_loop_predict, capsys, **args(images, out=str(tmp_path)))
    assert code == 2 and 'has 1 MB free and the result may need 17 MB' in err


def test_a_size_that_the_network_cannot_take(images, tmp_path, capsys):
    @register('network')
    def only_32(C): return nn.Sequential(nn.Flatten(), nn.Linear(3*32*32, C))
    try:
        torch.save(CHOICES['network']['only_32'](3).state_dict(), tmp_path/'w.pth')
        code, err = said_by(closed_loop_predict, capsys, **args(images, arch='only_32', weights=str(tmp_path/'w.pth'), size=48, out=str(tmp_path/'o')))
    finally: del CHOICES['network']['only_32']
    assert code == 2 and 'cannot take images of shape (3, 48, 48)' in err and 'pass --size PIXELS' in err and err.count('\n') == 1


@pytest.mark.parametrize('typed_flip,aug,setting', [([], True, True), (['--no-flip'], False, False), (['--flip'], True, True)])
def test_what_images_go_through_is_as_typed(images, tmp_path, capsys, typed_flip, aug, setting):
    got = {}
    def see(**kwargs):
        got.update(kwargs)
        raise ValueError('seen')
    argv = typed({k: v for k, v in args(images, preset='default', out=tmp_path/'o', mean='.1,.2,.3', std='.5', interpolation='bicubic', decode=0.).items()})
    with mock.patch.object(sys, 'argv', ['closed_loop_predict', *argv, *typed_flip]), mock.patch('closed_loop.core.cli_predict', see):
        with pytest.raises(SystemExit): closed_loop_predict()
    tfms, out = str(got['train'].transform), capsys.readouterr().out
    assert ('Flip' in tfms) == aug and got['flip'] is setting and 'bicubic' in tfms and 'mean=[0.1, 0.2, 0.3], std=[0.5, 0.5, 0.5]' in tfms
    assert out.startswith('images: 32 pixels (squeezed), mean 0.1 0.2 0.3, std 0.5 0.5 0.5, bicubic (')
