"The commands, run as people run them"
import json, os, re, shutil, subprocess, sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torchvision import models

from closed_loop.commands import closed_loop_predict

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
    torch.manual_seed(0)
    torch.save(models.shufflenet_v2_x0_5(num_classes=3, weights=None).state_dict(), d/'w.pth')
    return d


def args(d, **kw):
    a = dict(train=str(d/'train'), test=str(d/'test'), arch='shufflenet_v2_x0_5', weights=str(d/'w.pth'), size=32, preset='paper', Q=2, K=2, epochs=1, eps=1., out=str(d/'out'))
    return {**a, **kw}


def typed(a): return [o for k, v in a.items() for o in (f'--{k}', str(v))]


def run(*cmd):
    "A command as people start it, who did not ask for other libraries' warnings"
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONWARNINGS'}
    return subprocess.run([str(o) for o in cmd], capture_output=True, text=True, env=env)


def test_predict_writes_what_it_promises(images):
    res = run(BIN/'closed_loop_predict', *typed(args(images)), '--skip-bad')
    assert res.returncode == 0, res.stderr
    assert res.stderr == ''
    df = pd.read_csv(images/'out/predictions.csv')
    assert list(df.columns) == ['path', 'first', 'first_confidence', 'final', 'final_confidence', 'task', 'target']
    assert len(df) == 12 and set(df.target) == set(COLOURS) and df.path.map(lambda p: Path(p).exists()).all()
    assert [Path(p).parent.name for p in df.path] == list(df.target)
    assert df.final_confidence.between(0, 1).all() and set(df.task) <= {-1, 0, 1}
    assert 'The four fates' in (images/'out/index.html').read_text(encoding='utf-8') and 'report:' in res.stdout


def test_only_our_own_warnings_are_seen(images):
    res = run(BIN/'closed_loop_predict', *typed(args(images, preset='default', out=images/'few')))
    assert res.returncode == 0, res.stderr
    said = [o for o in res.stderr.splitlines() if 'Warning: ' in o]
    assert len(said) == 1 and 'closed_loop' in said[0] and 'UserWarning: only ' in said[0], res.stderr


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
    (dict(train='nowhere'), 'nowhere'), (dict(arch='resnet19'), "arch='resnet19'"), (dict(weights='nothing.pth'), 'nothing.pth'),
    (dict(K=9), 'K=9'), (dict(eps=2.), 'eps=2.0'), (dict(layers='layer7'), 'layer7'), (dict(Q=0), 'Q=0'), (dict(train=None), '--train missing'),
    (dict(preset='fast'), "preset='fast'"), (dict(bn='half'), "bn='half'"), (dict(subset='best'), "subset='best'"), (dict(threads='many'), "threads='many'")])
def test_what_is_wrong_is_said_in_one_sentence(images, capsys, kw, says):
    with pytest.raises(SystemExit) as e: closed_loop_predict(**args(images, **kw))
    err = capsys.readouterr().err.strip()
    assert e.value.code == 2 and says in err and '\n' not in err and err.startswith('closed_loop: ')


def test_an_unreadable_image_is_named_or_skipped(images, tmp_path, capsys):
    shutil.copytree(images/'train', tmp_path/'train')
    bad = tmp_path/'train/red/3.jpg'
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(SystemExit): closed_loop_predict(**args(images, train=str(tmp_path/'train'), K=3))
    assert str(bad) in capsys.readouterr().err
    closed_loop_predict(**args(images, train=str(tmp_path/'train'), K=3, skip_bad=True, out=str(tmp_path/'out')))
    assert str(bad) in ''.join(capsys.readouterr()) and (tmp_path/'out/predictions.csv').exists()
