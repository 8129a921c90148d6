"""Learning curves of training further on all classes: the mean of the weights on the way, and a learning rate that falls. On labelled images of seed 0, apart from the test set.

    python benchmarks/further.py --data path/to/tiny-imagenet-60
    python benchmarks/further.py --data path/to/tiny-imagenet-60 --own   # what training images tell where no others have labels
    python benchmarks/further.py --data path/to/tiny-imagenet-60 --own --seed 3 --only "60 classes, not to the end"   # a network that they take for converged
    python benchmarks/further.py --data path/to/tiny-imagenet-60 --wd 0.0001 0.001 0.01   # weight decay
"""
import pandas as pd

from accuracy import folder_problem, glyph_problem, parser
from closed_loop.adapt import KeepBest, rollback
from closed_loop.commands import said
from closed_loop.generalist import doublings, score_of, train_further, updates
from closed_loop.inputs import open_all
from closed_loop.loaders import as_dl
from closed_loop.look import Views, look
from closed_loop.probes import look_at_probes, probe_views
from common import write

PROBLEMS = {'glyphs, narrow':dict(base='narrow'), '60 classes, not to the end':dict(), '60 classes, narrow':dict(width=8, base_epochs=40), '60 classes, to the end':dict(base_epochs=30)}
OWN = {'glyphs, three epochs':dict(), **PROBLEMS}
FALLING = 500,2000   # updates, each from the beginning


def opened(name, data, seed=0, **how):
    "Network and images of a seed"
    a = parser('').parse_args(['--data', data if name.startswith('60') else 'glyphs', *(str(o) for k,v in how.items() for o in (f'--{k}',v))])
    return folder_problem(seed, a) if name.startswith('60') else glyph_problem(a.base, seed, a)


def curves(name, data, most, falling, decays=(), **how):
    "Score, accuracy and right answers destroyed of labelled images after so many updates, over one look and several views"
    model,train,calib,test,flip = opened(name, data, **how)
    problem,cfg = open_all(model, train, test, calib, generalist='auto', flip=flip)
    pr = look_at_probes(problem, cfg, look(model, problem.test_dl)[0])
    was = pr.first.argmax(1)==pr.targets
    def of(z, views=''): ok = z.argmax(1)==pr.targets; return {f'score{views}':score_of(z,pr.targets), f'right{views}':100*ok.float().mean().item(), f'T2F{views}':int((was&~ok).sum())}
    def row(way, t): return dict(problem=name, way=way, updates=t, **of(look(model,pr.dl)[0]), **of(look(Views(model,cfg.views,cfg.flip),pr.dl)[0],'_views'))
    yield row('as it came', 0)
    def ends(best): rows[-1]['updates'] = best.done; return False
    for wd in decays or [None]:
        rows,way = [],'mean of the weights' + (f', wd={wd}' if wd else '')
        def score(): rows.append(row(way, 0)); return 0.
        with rollback(model): train_further(model, problem.aux, most, cfg.bs, cfg.lr, cfg.seed, looks=[KeepBest(score, at=doublings(most), ends=ends)], mom=cfg.mom, **said(wd=wd))
        yield from rows
    for n in FALLING if falling else ():
        with rollback(model):
            train_further(model, problem.aux, n, cfg.bs, cfg.lr, cfg.seed, average=False, mom=cfg.mom)
            yield row('falling rate', n)


def own_images(name, data, seed=0, **how):
    "Scores over several views, without a calibration set: of images set aside, of others that stay in training, and of labelled ones that the network has never seen"
    model,train,calib,test,flip = opened(name, data, seed, **how)
    problem,cfg = open_all(model, train, test, generalist='auto', seed=seed, flip=flip, Q=8 if name.startswith('60') else 12)
    both = probe_views(problem, cfg, look_at_probes(problem, cfg, look(model, problem.test_dl)[0]))
    net,n,most = Views(model,cfg.views,cfg.flip),len(both.targets)//2,updates(problem,cfg)//4   # the first half was set aside
    def row(t):
        z,(zc,yc) = look(net, both.dl)[0],look(net, as_dl(calib))
        return dict(problem=name, updates=t, **{k:score_of(a,b) for k,a,b in (('set_aside',z[:n],both.targets[:n]),('trained_on',z[n:],both.targets[n:]),('both',z,both.targets),('unseen',zc,yc))})
    rows = [row(0)]
    def score(): rows.append(row(0)); return 0.
    def ends(best): rows[-1]['updates'] = best.done; return False
    with rollback(model): train_further(model, problem.aux, most, cfg.bs, cfg.lr, cfg.seed, looks=[KeepBest(score, at=doublings(most), ends=ends)], mom=cfg.mom)
    return rows


def main():
    p = parser(__doc__); p.add_argument('--most', type=int, default=8000, help='updates'); p.add_argument('--own', action='store_true', help='training images judge'); p.add_argument('--seed', type=int, default=0, help='with --own: of the network and the images')
    p.add_argument('--wd', type=float, nargs='+', default=[], help='weight decays, in place of a falling rate'); p.add_argument('--only', nargs='+', default=list(OWN), help='problems')
    args = p.parse_args(); rows = []
    for name,how in (OWN if args.own else PROBLEMS).items():
        if name.startswith('60') and args.data=='glyphs' or name not in args.only: continue
        rows += own_images(name, args.data, args.seed, **how) if args.own else curves(name, args.data, args.most, not args.wd and name in list(PROBLEMS)[:2], args.wd, **how)
        df = pd.DataFrame(rows); write('further_own'+(f'_{args.seed}' if args.seed else '') if args.own else 'further_decay' if args.wd else 'further', df); print(df.round(3).to_string(), flush=True)


if __name__ == '__main__': main()
