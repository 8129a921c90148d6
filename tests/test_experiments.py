"Every experiment of the paper, at smoke scale, from folders in ImageNet's and ImageNet-C's layouts"
import json, multiprocessing, os, shutil, subprocess, sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from closed_loop.checkpoint import weights_id
from closed_loop.commands import closed_loop_experiment
from closed_loop.config import CHOICES
from closed_loop.data.corruptions import write_corrupted
from closed_loop.data.imagenet import make_imagenet
from closed_loop.paper.bench import glyph_bench, imagenet_bench, open_network, robust_networks
from closed_loop.paper.experiments import SWEEPS, run_experiment
from closed_loop.paper.lab import Lab
from closed_loop.paper.networks import network
from closed_loop.paper.store import Store

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


@pytest.mark.parametrize('name', [n for n in CHOICES['experiment'] if n not in ('imagenet_c', 'table1', 'ttt_reimplementation')])
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


def test_imagenet_c_with_robust_networks(folders, capsys):
    lab = Lab(imagenet_bench(folders/'data', folders/'c', 'smoke', 'random', folders/'robust'), folders/'outc', device='cpu', epochs=1, Q=1)
    df = run_experiment('imagenet_c', lab, nets=['ResNet-50'], severities=[1], corruptions=['fog', 'contrast'])
    assert sorted(df.method.unique()) == sorted(['base', 'CLI', 'TTT', 'TTT+CLI', 'BN', 'Tent', 'AugMix', 'ANT']) and len(df) == 8*2
    assert set(df.source) == {'generated'} and set(df.N) == {12}
    p = df[(df.method == 'TTT+CLI') & (df.corruption == 'fog') & (df.severity == 1)]
    assert p.paper_acc.notna().all() and df[df.method == 'Tent'].paper_acc.isna().all()
    for _, g in df.groupby(['severity', 'corruption']): assert set(g[g.acc == g.acc.max()].mark) == {'best'}
    assert set(df.shown) == {'as they are'}
    two = run_experiment('ttt_reimplementation', lab, nets=['resnet50'], severities=[1], corruptions=['fog']).iloc[0]
    assert (two.paper_published, two.paper_modified) == (63.70, 68.28) and two.modified == df[(df.method == 'TTT') & (df.corruption == 'fog') & (df.severity == 1)].acc.item()
    closed_loop_experiment('imagenet_c', str(folders/'data'), data_c=str(folders/'c'), scale='smoke', weights='random', robust=str(folders/'robust'), out=str(folders/'outc'),
                           severities='1', corruptions='fog', settings='epochs=1,Q=1', device='cpu')
    says = capsys.readouterr().out
    assert says.index(f'{p.paper_acc.item():.2f}') > says.index("the paper's TTT+CLI") and 'images are shown as they are' in says


def test_official_files_are_shown_as_they_are(folders):
    "Pixels of a file that has the network's size are only normalised; other sizes, and resize=True, are resized and cropped"
    def bench(**k): return imagenet_bench(folders/'data', folders/'c', 'smoke', 'random', **k)
    ds, mean, std = bench().shifted('ResNet-18', 'fog', 1), np.array([.485, .456, .406]), np.array([.229, .224, .225])
    from PIL import Image
    raw = Image.open(ds.paths[0]).convert('RGB')
    want = (np.asarray(raw)/255-mean)/std
    assert raw.size == (64, 64) and ds.shown == 'as they are' and np.abs(ds[0][0].permute(1, 2, 0).numpy()-want).max() < 1e-5
    again = bench(resize=True).shifted('ResNet-18', 'fog', 1)
    assert again.shown == 'resized' and (again[0][0]-ds[0][0]).abs().max() > .01
    assert bench().shifted('Inception-V3', 'fog', 1).shown == 'resized'   # it takes 75 pixels at least


class Count:
    "Counts real runs of closed-loop inference, by what they were asked for"
    def __init__(self, monkeypatch):
        import closed_loop.paper.lab as m
        self.runs, run = [], m.cli_predict
        def counted(model, train, test, **kw):
            res = run(model, train, test, **kw)
            self.runs.append((weights_id(model), len(test), json.dumps(vars(res.cfg), sort_keys=True, default=str)))
            return res
        monkeypatch.setattr(m, 'cli_predict', counted)


def test_each_distinct_run_is_made_once(tmp_path, monkeypatch):
    "Sweeps, ablations and tables ask for the base run under many names; what a run is comes from its result"
    count, bench = Count(monkeypatch), glyph_bench(n_test=160)
    lab = Lab(bench, tmp_path, device='cpu')
    names = [*SWEEPS, 'table1', 'supcon', 'layers', 'online', 'gallery', 'pure_fine_tuning']
    rows = {n: run_experiment(n, lab) for n in names}
    # of 17 that are asked for: base, Q=1, eps .5 and .9, K 2 and 3, epochs=2, proportion=.5, lam=0, layer4, eps=.3 in groups and alone
    assert len(count.runs) == len(set(count.runs)) == 12
    assert rows['Q'].gain[1] == rows['epochs'].gain[0] == rows['proportion'].gain[1] == rows['table1'].gain[0] == rows['layers'].gain[1]
    n = len(count.runs)
    for k in names: run_experiment(k, Lab(bench, tmp_path, device='cpu'))
    assert len(count.runs) == n


@pytest.mark.parametrize('how', ['preset', 'precision', 'device', 'weights'])
def test_what_changes_the_answer_makes_another_unit(tmp_path, monkeypatch, how):
    count, bench = Count(monkeypatch), glyph_bench(n_test=160)
    def row(seed=None, **kw):
        lab = Lab(bench, tmp_path, device='cpu')
        if how == 'weights' and seed: lab.model('glyph_net').fc.bias.data[0] += 1e-3
        if how == 'device' and seed: lab.predict, lab.device = lambda *a, **k: Lab.predict(Lab(bench, tmp_path, device='cpu'), *a, **k), torch.device('meta')
        return lab.cli('glyph_net', eps=.3, **kw)
    row()
    if how == 'preset': monkeypatch.setitem(__import__('closed_loop.config').config.PRESETS, 'paper', dict(tau=.2))
    row(1, **(dict(precision='bf16') if how == 'precision' else {}))
    assert len(count.runs) == 2 and len(list((tmp_path/'units').iterdir())) == 2
    row(1, **(dict(precision='bf16') if how == 'precision' else {}))
    assert len(count.runs) == 2


def _write(out, n, go):
    s = Store(out, a=1)
    go.wait()
    for i in range(n): s.get(f'u{i}', lambda d: [dict(i=i, text='x'*20000)], b=2)


def test_three_processes_write_the_same_units(tmp_path):
    ctx = multiprocessing.get_context('fork')
    go = ctx.Barrier(3)
    ps = [ctx.Process(target=_write, args=(tmp_path, 60, go)) for _ in range(3)]
    for p in ps: p.start()
    for p in ps: p.join(60)
    assert [p.exitcode for p in ps] == [0, 0, 0]
    files = [p for p in tmp_path.rglob('*') if p.is_file()]
    assert len(files) == 61 and all(json.loads(p.read_text()) for p in files)   # whole, and nothing is left over


def test_settings_given_are_honoured_everywhere(folders, tmp_path, monkeypatch):
    "eps, lr, bs and lam, in the arguments of whatever runs"
    import closed_loop.paper.experiments, closed_loop.paper.lab, closed_loop.paper.shifted
    seen = []
    def stop(*a, **kw):
        seen.append(kw)
        raise KeyboardInterrupt
    given = dict(eps=.45, lr=.003, bs=7, lam=.25)
    lab = Lab(glyph_bench(n_test=160), tmp_path, device='cpu', num_workers=0, **given)
    row = lab.cli('glyph_net')
    lab.num_workers = 3
    monkeypatch.setattr(closed_loop.paper.experiments, 'pft', stop)
    with pytest.raises(KeyboardInterrupt): run_experiment('pure_fine_tuning', lab)
    assert seen.pop().items() >= dict(lr=.003, bs=7, lam=.25, price=row['price'], num_workers=3).items()
    monkeypatch.setattr(closed_loop.paper.lab, 'cli_predict', stop)
    monkeypatch.setattr(closed_loop.paper.shifted, 'ttt_then_cli', stop)
    monkeypatch.setattr(Lab, 'branch', lambda self, net: None)   # its training is another matter
    for name, kw in (('Q', {}), ('imagenet_c', dict(methods=['cli'])), ('imagenet_c', dict(methods=['ttt']))):
        if name == 'imagenet_c': kw.update(severities=[1], corruptions=['fog'])
        with pytest.raises(KeyboardInterrupt): run_experiment(name, lab, **kw)
        assert seen.pop().items() >= dict(given, num_workers=3).items()
    for preset, eps in (('paper', .6), ('default', .7)):   # its own where none is given
        with pytest.raises(KeyboardInterrupt):
            run_experiment('imagenet_c', Lab(glyph_bench(n_test=160), tmp_path/preset, preset, device='cpu'), severities=[1], corruptions=['fog'], methods=['ttt'])
        assert seen.pop()['eps'] == eps


def test_a_stopped_unit_goes_on_task_by_task(tmp_path, monkeypatch):
    import closed_loop.schedule as m
    done, run = [], m.run_task
    def row(out, most=99):
        def task(*a):
            if len(done) == most: raise KeyboardInterrupt
            done.append(a)
            return run(*a)
        monkeypatch.setattr(m, 'run_task', task)
        return Lab(glyph_bench(n_test=160), tmp_path/out, device='cpu', Q=3).cli('glyph_net')
    whole = row('a')
    done.clear()
    with pytest.raises(KeyboardInterrupt): row('b', 2)
    again = row('b')
    assert len(done) == again['tasks'] == 3 and {**again, 'tpi_s': 0} == {**whole, 'tpi_s': 0}
    assert not list(tmp_path.rglob('work'))


def test_held_out_images_are_looked_at_once_for_all_conditions(tmp_path, monkeypatch):
    "The second condition looks at its own images alone, and says what it says without the first"
    import closed_loop.look as m
    looked, batches = [], m.look_in_batches
    monkeypatch.setattr(m, 'look_in_batches', lambda model, dl, device='cpu': looked.append(getattr(dl, 'n', 0)) or batches(model, dl, device))
    kw = dict(severities=[1], methods=['cli'])
    def run(n, *corruptions): return run_experiment('imagenet_c', Lab(glyph_bench(n_test=160), tmp_path/str(n), 'default', device='cpu', eps=.3, Q=1, shift=None), corruptions=corruptions, **kw)
    both = run(0, 'contrast', 'fog')
    tests = looked.count(160)
    n, looked[:] = len(looked), []
    apart = run(1, 'contrast'), run(2, 'fog')
    assert tests == looked.count(160) == 4 and n < len(looked)   # one look and several views
    pd.testing.assert_frame_equal(both, pd.concat(apart, ignore_index=True))


def test_corrupted_images_are_made_once(folders, tmp_path, monkeypatch):
    from closed_loop.data.corruptions import Corrupted
    made, image = [], Corrupted.image
    monkeypatch.setattr(Corrupted, 'image', lambda self, i: made.append(i) or image(self, i))
    kw = dict(severities=[1], corruptions=['contrast'], methods=['cli', 'yardsticks'])
    def run(n, **k):
        lab = Lab(imagenet_bench(folders/'data', None, 'smoke', 'random', folders/'robust', n_test=6), tmp_path/str(n), device='cpu', num_workers=0, eps=.3, **k)
        return run_experiment('imagenet_c', lab, nets=['ResNet-18'], **kw), lab
    df, lab = run(0)
    assert len(made) == 6 and set(df.N) == {6}
    units = [json.loads(p.read_text())['images'] for p in lab.store.out.glob('units/*/unit.json')]
    assert len(units) == 4 and set(units) == {f'corrupted/{p.name}' for p in (lab.store.out/'corrupted').iterdir()}
    other, lab = run(1, keep=0.)
    assert len(made) > 6*4 and not list((lab.store.out/'corrupted').iterdir())
    assert {json.loads(p.read_text())['images'] for p in lab.store.out.glob('units/*/unit.json')} == {'nowhere, corrupted every time'}
    pd.testing.assert_frame_equal(df, other)


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


def one_line(capsys, **kw):
    "What the command says before it leaves"
    with pytest.raises(SystemExit) as e: closed_loop_experiment(**kw)
    err = capsys.readouterr().err.strip()
    assert e.value.code == 2 and '\n' not in err and err.startswith('closed_loop: ')
    return err


@pytest.mark.parametrize('kw,says', [
    (dict(data_c='c'), "--data-c c means nothing to table1: expected with imagenet_c, ttt_reimplementation only"), (dict(resize=True), '--resize means nothing to table1'),
    (dict(robust='r'), '--robust r means nothing to table1: expected with imagenet_c only'), (dict(robust='r', name='ttt_reimplementation'), '--robust r means nothing to ttt_reimplementation'),
    (dict(severities='2-3'), '--severities 2,3 means nothing to table1'), (dict(corruptions='fog'), "corruptions=['fog'] means nothing to table1"),
    (dict(nets='ResNet-18,ResNet-50', name='Q'), '--nets ResNet-18,ResNet-50: this experiment has one network'), (dict(nets='a,b', name='imagenet_c', data='glyphs', weights='paper'), "'a' cannot be used"),
    (dict(data='glyphs'), '--weights random means nothing to --data glyphs'), (dict(data='glyphs', name='imagenet_c', weights='paper', data_c='c'), '--data-c c means nothing to --data glyphs'),
    (dict(data='glyphs', name='imagenet_c', weights='paper', resize=True), '--resize means nothing to --data glyphs'), (dict(data='glyphs', name='imagenet_c', weights='paper', robust='r'), '--robust r means nothing to --data glyphs')])
def test_what_would_be_ignored_is_refused(folders, tmp_path, capsys, kw, says):
    a = dict(name='table1', data=str(folders/'data'), scale='smoke', weights='random', out=str(tmp_path/'o'), device='cpu')
    assert says in one_line(capsys, **{**a, **kw}) and not list(tmp_path.rglob('unit.json'))


def test_other_images_of_the_same_name_and_number_are_refused(folders, tmp_path):
    "One image that was replaced, in training and in ImageNet-C, and labels that changed places"
    data, c = (Path(shutil.copytree(folders/k, tmp_path/k)) for k in ('by_class', 'c'))
    def lab(): return Lab(imagenet_bench(data, c, 'smoke', 'random', n_test=6), tmp_path/'out', device='cpu')
    def swap(a, b):
        for x, y in ((a, tmp_path/'x'), (b, a), (tmp_path/'x', b)): os.rename(x, y)
    def two(d): return sorted(p for p in d.rglob('*') if p.is_file())[::5][:2]
    was = [lab().bench.corrupted('fog', s) for s in (1, 2)]
    swap(*two(c/'fog/1'))
    now = [lab().bench.corrupted('fog', s) for s in (1, 2)]
    assert now[0] != was[0] and now[1] == was[1]
    for a, b in (two(data/'train'), sorted((data/'val').iterdir())[:2]):
        swap(a, b)
        with pytest.raises(ValueError, match=r"holds results with images=\['24 images, \w+', '12 images, \w+'\], not .*: choose another folder with --out"): lab()
        swap(a, b)
        lab()


def test_local_weights_by_name(tmp_path):
    m = network('ResNet-18', 4)
    torch.save(m.state_dict(), tmp_path/'ResNet-18.pth')
    assert weights_id(open_network('ResNet-18', 4, tmp_path)) == weights_id(m)
    with pytest.raises(ValueError, match='no weights for ResNet-50'): open_network('ResNet-50', 4, tmp_path)
    with pytest.raises(ValueError, match='no robust checkpoint'): robust_networks(tmp_path, 'resnet50', 4)


@pytest.mark.parametrize('kw,says', [
    (dict(name='table9'), "'table9'"), (dict(data='nowhere'), 'nowhere'), (dict(scale='huge'), '--scale huge'), (dict(preset='fast'), '--preset fast'),
    (dict(nets='ResNet-19'), "'ResNet-19'"), (dict(nets='ResNet-18', data='glyphs', weights='paper'), "'ResNet-18' cannot be used with glyphs"), (dict(name='imagenet_c', corruptions='rain'), "'rain'"), (dict(name='imagenet_c', severities='7'), '7'),
    (dict(settings='Z=1'), 'Z=1'), (dict(severities='x', name='imagenet_c'), "'x'")])
def test_what_is_wrong_is_said_in_one_sentence(folders, tmp_path, capsys, kw, says):
    a = dict(name='table1', data=str(folders/'data'), scale='smoke', weights='random', out=str(tmp_path/'o'), device='cpu')
    assert says in one_line(capsys, **{**a, **kw})


def test_the_command(tmp_path):
    cmd = [str(Path(sys.executable).parent/'closed_loop_experiment'), 'criterion', '--data', 'glyphs', '--scale', 'smoke', '--out', str(tmp_path), '--n_test', '320']
    res = subprocess.run(cmd, capture_output=True, text=True)
    assert res.returncode == 0, res.stderr
    assert 'softmax' in res.stdout and json.loads((tmp_path/'criterion.json').read_text())['command'].startswith('closed_loop_experiment criterion --data glyphs')
    assert 'more rows in' in res.stdout and len(res.stdout.splitlines()) < 60
    assert json.loads(next(tmp_path.glob('units/criterion_glyph_net-*/unit.json')).read_text())['key']['weights']
