"Every experiment of the paper, at smoke scale, from folders in ImageNet's and ImageNet-C's layouts"
import json, subprocess, sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from closed_loop.commands import closed_loop_experiment
from closed_loop.config import CHOICES
from closed_loop.data.corruptions import write_corrupted
from closed_loop.data.imagenet import make_imagenet
from closed_loop.paper.experiments import run_experiment
from closed_loop.paper.lab import Lab, imagenet_bench, open_network, robust_networks
from closed_loop.paper.networks import network
from closed_loop.paper.store import weights_id

TINY = Path(__file__).parents[2]/'shared/data/tiny-imagenet-60'


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "ImageNet with loose validation images and a devkit, ImageNet-C, and robust checkpoints as their authors wrap them"
    d, images = tmp_path_factory.mktemp('imagenet'), TINY if TINY.exists() else None
    kw = dict(images=images, n_classes=4, n_train=6, n_val=3)
    make_imagenet(d/'data', layout='devkit', **kw)
    make_imagenet(d/'by_class', **kw)
    write_corrupted(d/'by_class/val', d/'c', ['fog', 'contrast'], (1, 2), n_workers=0, progress=False)
    sd = network('resnet50', 4).state_dict()
    (d/'robust').mkdir()
    torch.save(dict(state_dict={f'module.{k}': v for k, v in sd.items()}, epoch=3), d/'robust/augmix.pth.tar')
    torch.save(dict(model_state_dict=sd), d/'robust/ant.pth')
    return d


@pytest.fixture(scope='module')
def lab(folders): return Lab(imagenet_bench(folders/'data', folders/'c', 'smoke', 'random'), folders/'out', device='cpu')


@pytest.mark.parametrize('name', [n for n in CHOICES['experiment'] if n not in ('imagenet_c', 'table1')])
def test_experiment_runs_to_its_end(lab, name):
    df = run_experiment(name, lab, nets=['ResNet-18'])
    out = lab.store.out
    assert len(df) and len(pd.read_csv(out/f'{name}.csv')) == len(df)
    rec = json.loads((out/f'{name}.json').read_text())
    assert rec['preset'] == 'paper' and rec['scale'] == 'smoke' and rec['seed'] == 0 and rec['test'] == 12 and rec['train'] == 24 and rec['torch'].startswith(torch.__version__.split('+')[0])
    if name in ('Q', 'eps', 'K', 'epochs', 'proportion', 'criterion', 'gallery'): assert (out/f'{name}.png').stat().st_size > 5000


def test_table1_of_several_networks_stands_beside_the_paper(lab):
    nets = ['ResNet-18', 'MobileNet-V3', 'EfficientNet-B0']
    df = run_experiment('table1', lab, nets=nets).set_index('model')
    assert list(df.index) == nets and df.paper_cli['ResNet-18'] == 72.20 and df.paper_f2t['ResNet-18'] == 2491
    assert (df.cli-df.original-df.gain).abs().max() < 1e-4 and ((df.f2t-df.t2f)/df.N*100-df.gain).abs().max() < 1e-4
    assert df.params_m.round(1).to_dict() == {'ResNet-18': 11.7, 'MobileNet-V3': 5.5, 'EfficientNet-B0': 5.3}


def test_imagenet_c_with_robust_networks(folders):
    lab = Lab(imagenet_bench(folders/'data', folders/'c', 'smoke', 'random', folders/'robust'), folders/'outc', device='cpu', epochs=1, Q=1)
    df = run_experiment('imagenet_c', lab, nets=['ResNet-50'], severities=[1, 2], corruptions=['fog', 'contrast'])
    assert sorted(df.method.unique()) == sorted(['base', 'CLI', 'TTT', 'TTT+CLI', 'BN', 'Tent', 'AugMix', 'ANT']) and len(df) == 8*4
    assert set(df.source) == {'generated'} and set(df.N) == {12}
    p = df[(df.method == 'TTT+CLI') & (df.corruption == 'fog') & (df.severity == 1)]
    assert p.paper_acc.notna().all() and df[df.method == 'Tent'].paper_acc.isna().all()
    for _, g in df.groupby(['severity', 'corruption']): assert set(g[g.acc == g.acc.max()].mark) == {'best'}


def test_images_are_corrupted_on_the_fly_without_a_folder(folders):
    ds = imagenet_bench(folders/'data', None, 'smoke', 'random').shifted('ResNet-18', 'contrast', 2)
    clean = imagenet_bench(folders/'data', None, 'smoke', 'random').images('ResNet-18')[1]
    assert len(ds) == 12 and ds.source == 'generated' and ds[0][1] == clean[0][1] and not torch.equal(ds[0][0], clean[0][0])


def test_a_second_run_computes_nothing(lab, folders, monkeypatch):
    first = run_experiment('K', lab, nets=['ResNet-18'])
    import closed_loop.paper.lab
    monkeypatch.setattr(closed_loop.paper.lab, 'cli_predict', lambda *a, **k: pytest.fail('computed again'))
    again = run_experiment('K', Lab(imagenet_bench(folders/'data', folders/'c', 'smoke', 'random'), folders/'out', device='cpu'), nets=['ResNet-18'])
    pd.testing.assert_frame_equal(first, again)


def test_results_of_other_settings_are_refused(lab, folders):
    out, bench = lab.store.out, lambda **k: imagenet_bench(folders/'data', folders/'c', 'smoke', 'random', **k)
    for kw, says in ((dict(preset='default'), 'preset'), (dict(seed=1), 'seed'), (dict(eps=.5), 'settings')):
        with pytest.raises(ValueError, match=says): Lab(bench(), out, device='cpu', **kw)
    with pytest.raises(ValueError, match='test=12, not 5'): Lab(bench(n_test=5), out, device='cpu')
    with pytest.raises(ValueError, match='weights='): run_experiment('table1', Lab(bench(seed=7), out, device='cpu'), nets=['ResNet-18'])


def test_local_weights_by_name(tmp_path):
    m = network('ResNet-18', 4)
    torch.save(m.state_dict(), tmp_path/'ResNet-18.pth')
    assert weights_id(open_network('ResNet-18', 4, tmp_path)) == weights_id(m)
    with pytest.raises(ValueError, match='no weights for ResNet-50'): open_network('ResNet-50', 4, tmp_path)
    with pytest.raises(ValueError, match='no robust checkpoint'): robust_networks(tmp_path, 'resnet50', 4)


@pytest.mark.parametrize('kw,says', [
    (dict(name='table9'), "'table9'"), (dict(data='nowhere'), 'nowhere'), (dict(scale='huge'), '--scale huge'), (dict(preset='fast'), '--preset fast'),
    (dict(nets='ResNet-19'), "'ResNet-19'"), (dict(name='imagenet_c', corruptions='rain'), "'rain'"), (dict(name='imagenet_c', severities='7'), '7'),
    (dict(settings='Z=1'), 'Z=1'), (dict(severities='x', name='imagenet_c'), "'x'")])
def test_what_is_wrong_is_said_in_one_sentence(folders, tmp_path, capsys, kw, says):
    a = dict(name='table1', data=str(folders/'data'), scale='smoke', weights='random', out=str(tmp_path/'o'), device='cpu')
    with pytest.raises(SystemExit) as e: closed_loop_experiment(**{**a, **kw})
    err = capsys.readouterr().err.strip()
    assert e.value.code == 2 and says in err and '\n' not in err and err.startswith('closed_loop: ')


def test_the_command(tmp_path):
    cmd = [str(Path(sys.executable).parent/'closed_loop_experiment'), 'criterion', '--data', 'glyphs', '--scale', 'smoke', '--out', str(tmp_path), '--n_test', '320']
    res = subprocess.run(cmd, capture_output=True, text=True)
    assert res.returncode == 0, res.stderr
    assert 'softmax' in res.stdout and json.loads((tmp_path/'criterion.json').read_text())['command'].startswith('closed_loop_experiment criterion --data glyphs')
    assert json.loads((tmp_path/'units/criterion_glyph_net/unit.json').read_text())['key']['weights']
